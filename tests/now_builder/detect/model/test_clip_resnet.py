"""The backbone carries CLIP's names and shapes, and computes what CLIP computes."""

import io
import warnings

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from now_builder.detect.model.clip_resnet import ModifiedResNet, load_clip
from now_builder.errors import ConfigError, FormatError


@pytest.fixture
def small():
    torch.manual_seed(1)
    return ModifiedResNet((1, 1, 1, 1), width=8, outputs=24, side=2)


def as_openai(state, path):
    """A whole model in half precision as a TorchScript archive, beside a text tower's tensor."""
    model = nn.Module()
    model.logit_scale = nn.Parameter(torch.zeros(()))
    for name, value in state.items():
        *path_to, last = f"visual.{name}".split(".")
        module = model
        for part in path_to:
            if part not in module._modules:
                module.add_module(part, nn.Module())
            module = module._modules[part]
        module.register_buffer(last, value.half())
    model.forward = lambda x: x
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        torch.jit.save(torch.jit.trace(model, torch.zeros(1)), path)


def as_open_clip(state, path):
    torch.save({f"visual.{name}": value for name, value in state.items()}, path)


def as_checkpoint(state, path):
    """What open_clip writes while it trains on several GPUs."""
    inner = {f"module.visual.{name}": value for name, value in state.items()}
    torch.save({"epoch": 3, "state_dict": inner | {"module.logit_scale": torch.ones(())}}, path)


def as_safetensors(state, path):
    save_file({f"visual.{name}": value for name, value in state.items()}, path)


@pytest.mark.parametrize(
    "write", [as_openai, as_open_clip, as_checkpoint, as_safetensors, save_file, torch.save]
)
def test_weights_load_from_the_files_that_others_publish(tmp_path, small, write):
    state = {name: value.half().float() for name, value in small.state_dict().items()}
    write(state, tmp_path / "RN50.pt")
    other = ModifiedResNet((1, 1, 1, 1), width=8, outputs=24, side=2)
    load_clip(other, str(tmp_path / "RN50.pt"))
    for name, value in state.items():
        assert torch.equal(other.state_dict()[name].float(), value), name


class Trap:
    """Anything but tensors: unpickling it would run its code."""

    def __reduce__(self):
        return print, ("sprung",)


def test_what_cannot_be_read_is_a_users_mistake_and_no_code_is_run(
    tmp_path, small, capsys, monkeypatch
):
    whole, path = io.BytesIO(), tmp_path / "torn.pt"
    torch.save(small.state_dict(), whole)
    content = whole.getvalue()
    for torn in (content[:-40], content.replace(b"conv1.weight", b"\xff" * 12), b"no weights"):
        path.write_bytes(torn)
        with pytest.raises(FormatError, match="not a readable safetensors or"):
            load_clip(small, str(path))
    torch.save({"visual.conv1.weight": Trap()}, path)
    with pytest.raises(FormatError, match="not a readable"):
        load_clip(small, str(path))
    assert "sprung" not in capsys.readouterr().out
    torch.save([1, 2], path)
    with pytest.raises(FormatError, match="missing"):
        load_clip(small, str(path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ConfigError, match="clip_weights"):
        load_clip(small, "no such name at all!")


def test_rn50_computes_what_open_clip_computes_from_the_same_weights(tmp_path):
    """Names one to one, C4, layer 4 and attention pooling, on a picture of 224 px."""
    from open_clip.modified_resnet import ModifiedResNet as Theirs

    theirs = Theirs([3, 4, 6, 3], 1024, 32, 224, 64)
    torch.manual_seed(0)
    for name, value in theirs.state_dict().items():
        if name.endswith("running_mean"):
            nn.init.normal_(value, std=0.1)
        elif name.endswith("running_var"):
            nn.init.uniform_(value, 0.5, 1.5)
        elif value.ndim == 1 and name.endswith("weight"):
            nn.init.uniform_(value, 0.5, 1.0)  # open_clip begins some at zero: nothing to compare
        elif value.ndim > 1:
            nn.init.kaiming_normal_(value)
    theirs.eval()
    as_open_clip(theirs.state_dict(), tmp_path / "RN50.pt")
    ours = ModifiedResNet().eval()
    assert set(ours.state_dict()) == set(theirs.state_dict())
    assert sum(p.numel() for p in ours.parameters()) == 38_316_896
    load_clip(ours, str(tmp_path / "RN50.pt"))
    pixels = torch.rand(2, 3, 224, 224)
    pixels[1] *= torch.linspace(0, 1, 224)
    normal = (pixels - ours.mean) / ours.std
    with torch.inference_mode():
        maps = theirs.layer3(theirs.layer2(theirs.layer1(theirs.stem(normal))))
        assert maps.std() > 0.1
        torch.testing.assert_close(ours.features(pixels), maps, atol=1e-4, rtol=0)
        joint = theirs(normal)
        assert joint.std(dim=0).max() > 0.01  # the two pictures differ
        torch.testing.assert_close(ours.pool(ours.features(pixels)), joint, atol=1e-4, rtol=0)


def test_weights_of_another_architecture_are_refused_with_the_name(tmp_path, small):
    save_file(small.state_dict(), tmp_path / "clip.safetensors")
    with pytest.raises(FormatError, match=r"not of this size .*size mismatch for"):
        load_clip(ModifiedResNet((1, 1, 1, 1), 16, 24, 2), str(tmp_path / "clip.safetensors"))
    with pytest.raises(FormatError, match="missing"):
        load_clip(ModifiedResNet((2, 1, 1, 1), 8, 24, 2), str(tmp_path / "clip.safetensors"))
