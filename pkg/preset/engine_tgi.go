package preset

import (
	"strconv"
	"time"
)

// tgi1 runs Text Generation Inference.
var tgi1 = &Preset{
	Name: "tgi", Version: 1, Title: "Text Generation Inference",
	DefaultEngine: "3.3.5", From: "2.4", Before: "4",
	Schemes: []string{"hf", "file"},
	Sources: []Source{
		{"flags, port, health", "huggingface.co/docs/text-generation-inference/reference/launcher", "3.3"},
		{"metrics", "huggingface/text-generation-inference docs/source/reference/metrics.md at 53fdbe6", "3.x"},
	},
	Aliases: map[string]string{"-p": "--port"},
	taken: map[string]string{
		"--model-id": "model", "--revision": "model", "--max-total-tokens": "context", "--num-shard": "parallel.tensor",
		"--port": "", "--hostname": "",
	},
	axes: axes{tensor: true},
	generate: func(d *draft) {
		d.spec.Image = "ghcr.io/huggingface/text-generation-inference:" + d.engine
		d.spec.Command = []string{"text-generation-launcher"}
		d.flags.set("--model-id", d.weightsName())
		d.setIf("--revision", d.model.revision)
		if d.in.Name != "" {
			d.addNote("NameIgnored", "name", "Text Generation Inference answers to any name of a model", "")
		}
		d.flags.set("--hostname", "0.0.0.0")
		d.flags.set("--port", "$(PORT)")
		if d.in.Context > 0 {
			// One token is left for the answer.
			d.flags.set("--max-input-tokens", strconv.Itoa(max(1, d.in.Context-1)))
			d.flags.set("--max-total-tokens", strconv.Itoa(d.in.Context))
		}
		d.setNumber("--num-shard", d.parallel.Tensor, 1)
		d.start("/health", 75*time.Second)
		d.setPort(0)
		d.hubCache()
		if d.in.GPU.Count > 1 {
			d.setShm(8192)
		}
	},
	metrics: func(string) []Metric { return onHTTP("/metrics", "tgi_queue_size", "tgi_batch_current_size", "") },
}

// hubCache sets the folder of downloads for Hugging Face's programs in Rust.
func (d *draft) hubCache() {
	if d.in.CachePath != "" && d.model.scheme == "hf" {
		d.setEnv("HUGGINGFACE_HUB_CACHE", d.in.CachePath)
	}
}
