"""The backbone carries CLIP's names and shapes, and computes what CLIP computes."""

import io
import warnings

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from now_builder.detect.model.clip_resnet import AttentionPool, ModifiedResNet, load_clip
from now_builder.errors import ConfigError, FormatError


def published_parameters(layers=(3, 4, 6, 3), width=64, outputs=1024, side=7):
    """Names and shapes of CLIP's ``visual.`` parameters, from the paper's architecture."""
    shapes = {}

    def norm(name, channels):
        for part in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{name}.{part}"] = (channels,)

    stem = [(3, width // 2), (width // 2, width // 2), (width // 2, width)]
    for number, (inputs, channels) in enumerate(stem, 1):
        shapes[f"conv{number}.weight"] = (channels, inputs, 3, 3)
        norm(f"bn{number}", channels)
    inputs = width
    for layer, blocks in enumerate(layers, 1):
        planes = width * 2 ** (layer - 1)
        for block in range(blocks):
            name = f"layer{layer}.{block}"
            shapes[f"{name}.conv1.weight"] = (planes, inputs, 1, 1)
            shapes[f"{name}.conv2.weight"] = (planes, planes, 3, 3)
            shapes[f"{name}.conv3.weight"] = (planes * 4, planes, 1, 1)
            for number, channels in ((1, planes), (2, planes), (3, planes * 4)):
                norm(f"{name}.bn{number}", channels)
            if block == 0:
                shapes[f"{name}.downsample.0.weight"] = (planes * 4, inputs, 1, 1)
                norm(f"{name}.downsample.1", planes * 4)
            inputs = planes * 4
    channels = width * 32
    shapes["attnpool.positional_embedding"] = (side**2 + 1, channels)
    for part in ("k", "q", "v", "c"):
        rows = outputs if part == "c" else channels
        shapes[f"attnpool.{part}_proj.weight"] = (rows, channels)
        shapes[f"attnpool.{part}_proj.bias"] = (rows,)
    return shapes


def test_rn50_has_the_published_names_and_shapes_one_to_one():
    with torch.device("meta"):
        visual = ModifiedResNet()
    ours = {
        name: tuple(value.shape)
        for name, value in visual.state_dict().items()
        if not name.endswith("num_batches_tracked")
    }
    assert ours == published_parameters()
    assert sum(p.numel() for p in visual.parameters()) == 38_316_896


def test_c4_has_a_sixteenth_of_the_side_and_regions_give_the_joint_space():
    visual = ModifiedResNet((1, 1, 1, 1), width=8, outputs=24, side=2).eval()
    maps = visual.features(torch.rand(1, 3, 64, 96))
    assert maps.shape == (1, 128, 4, 6)
    assert visual.pool(maps[:, :, :4, :4]).shape == (1, 24)


def test_attention_pooling_equals_the_multi_head_attention_of_the_paper():
    torch.manual_seed(0)
    pool = AttentionPool(side=3, channels=16, heads=4, outputs=10)
    x = torch.randn(5, 16, 3, 3)
    tokens = x.flatten(2).permute(2, 0, 1)
    tokens = torch.cat([tokens.mean(dim=0, keepdim=True), tokens])
    tokens = tokens + pool.positional_embedding[:, None]
    expected, _ = nn.functional.multi_head_attention_forward(
        tokens[:1], tokens, tokens, 16, 4, None,
        torch.cat([pool.q_proj.bias, pool.k_proj.bias, pool.v_proj.bias]), None, None,
        add_zero_attn=False, dropout_p=0.0, out_proj_weight=pool.c_proj.weight,
        out_proj_bias=pool.c_proj.bias, use_separate_proj_weight=True, training=False,
        q_proj_weight=pool.q_proj.weight, k_proj_weight=pool.k_proj.weight,
        v_proj_weight=pool.v_proj.weight, need_weights=False,
    )  # fmt: skip
    torch.testing.assert_close(pool(x), expected[0])


@pytest.fixture
def small():
    torch.manual_seed(1)
    return ModifiedResNet((1, 1, 1, 1), width=8, outputs=24, side=2)


@pytest.mark.parametrize("prefix", ["visual.", ""])
def test_weights_load_by_name_from_a_file_with_or_without_the_prefix(tmp_path, small, prefix):
    state = {prefix + name: value for name, value in small.state_dict().items()}
    if prefix:
        state["logit_scale"] = torch.zeros(())
    save_file(state, tmp_path / "clip.safetensors")
    other = ModifiedResNet((1, 1, 1, 1), width=8, outputs=24, side=2)
    load_clip(other, str(tmp_path / "clip.safetensors"))
    for name, value in small.state_dict().items():
        assert torch.equal(other.state_dict()[name], value), name


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


@pytest.mark.parametrize("write", [as_openai, as_open_clip, as_checkpoint, torch.save])
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


def test_a_pickle_with_code_in_it_is_refused_and_not_run(tmp_path, small, capsys):
    torch.save({"visual.conv1.weight": Trap()}, tmp_path / "trap.pt")
    with pytest.raises(FormatError, match="not a readable"):
        load_clip(small, str(tmp_path / "trap.pt"))
    assert "sprung" not in capsys.readouterr().out


def test_a_torn_or_empty_pickle_is_a_users_mistake(tmp_path, small):
    whole = io.BytesIO()
    torch.save(small.state_dict(), whole)
    content = whole.getvalue()
    no_text = content.replace(b"conv1.weight", b"\xff" * 12)
    for torn in (content[:-40], no_text):
        (tmp_path / "torn.pt").write_bytes(torn)
        with pytest.raises(FormatError, match="not a readable"):
            load_clip(small, str(tmp_path / "torn.pt"))
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(FormatError, match="missing"):
        load_clip(small, str(tmp_path / "list.pt"))


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
    with pytest.raises(FormatError, match=r"\w+: shape .*expected"):
        load_clip(ModifiedResNet((1, 1, 1, 1), 16, 24, 2), str(tmp_path / "clip.safetensors"))
    with pytest.raises(FormatError, match="missing"):
        load_clip(ModifiedResNet((2, 1, 1, 1), 8, 24, 2), str(tmp_path / "clip.safetensors"))


def test_a_torn_file_and_an_unreachable_name_are_a_users_mistakes(tmp_path, small, monkeypatch):
    (tmp_path / "torn.safetensors").write_bytes(b"not weights")
    with pytest.raises(FormatError, match="not a readable safetensors or"):
        load_clip(small, str(tmp_path / "torn.safetensors"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ConfigError, match="clip_weights"):
        load_clip(small, "no such name at all!")
