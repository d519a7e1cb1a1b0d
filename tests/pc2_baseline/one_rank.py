"""Run alone: the messages of a group, of which this process is the only rank, on its device.

``python one_rank.py cuda|cpu STORE`` exits with an error unless all come back as they were sent.
"""

import sys

import torch
import torch.distributed as dist

from pc2_baseline.process_groups import ProcessGroup, _Gather, _Share, wait
from pc2_baseline.training.run_folder import pick_device


def main():
    kind, store = sys.argv[1:]
    device = pick_device(kind)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{store}", rank=0, world_size=1)
    control = dist.new_group(backend="gloo")
    try:
        torch.manual_seed(0)
        own = torch.randn(6, 5, device=device, requires_grad=True)
        (shared,) = _Share.apply(dist.group.WORLD, own)
        gathered = _Gather.apply(ProcessGroup(0, 1, dist.group.WORLD), shared, 5)
        gathered.square().sum().backward()
        assert torch.equal(gathered, own)
        assert torch.equal(own.grad, 2 * own)
        flat = own.detach().clone()
        dist.all_reduce(flat)
        assert torch.equal(flat, own)
        box = [{"rows": 6}]
        dist.broadcast_object_list(box, src=0, group=control)
        assert box == [{"rows": 6}]
        wait()
    finally:
        dist.destroy_process_group()
    print(f"{backend} agrees")  # noqa: T201 - what the test reads


if __name__ == "__main__":
    main()
