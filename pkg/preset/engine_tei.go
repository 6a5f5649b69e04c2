package preset

import (
	"strings"
	"time"
)

// tei1 runs Text Embeddings Inference.
var tei1 = &Preset{
	Name: "tei", Version: 1, Title: "Text Embeddings Inference",
	DefaultEngine: "1.8", From: "1.2", Before: "2",
	Schemes: []string{"hf", "file"},
	Sources: []Source{
		{"flags, port", "huggingface/text-embeddings-inference docs/source/en/cli_arguments.md at 00a17ea", "1.x"},
		{"images", "huggingface/text-embeddings-inference README.md, Docker Images", "1.8"},
		{"metrics", "huggingface/text-embeddings-inference core/src/queue.rs at 0204616", "1.x"},
	},
	Aliases: map[string]string{"-p": "--port"},
	taken:   map[string]string{"--model-id": "model", "--revision": "model", "--served-model-name": "name", "--port": "", "--hostname": ""},
	generate: func(d *draft) {
		d.spec.Image = "ghcr.io/huggingface/text-embeddings-inference:" + d.teiBuild() + d.engine
		d.spec.Command = []string{"text-embeddings-router"}
		d.flags.set("--model-id", d.weightsName())
		d.setIf("--revision", d.model.revision)
		d.setIf("--served-model-name", d.in.Name)
		d.flags.set("--hostname", "0.0.0.0")
		d.flags.set("--port", "$(PORT)")
		if d.in.Context > 0 {
			d.fail("ContextUnsupported", "context", "Text Embeddings Inference takes the length from the model", "remove it; options has max-batch-tokens and auto-truncate")
		}
		if d.in.GPU.Count > 1 {
			d.fail("GPUsUnused", "/resources.gpu", "Text Embeddings Inference uses one GPU", "set count to 1, and raise replicas")
		}
		d.start("/health", 30*time.Second)
		d.setPort(0)
		d.hubCache()
	},
	metrics: func(string) []Metric { return onHTTP("/metrics", "te_queue_size", "", "") },
}

// teiBuilds are the prefixes of image tags, by part of the GPU product's name. Each image has kernels for one
// generation of GPUs.
var teiBuilds = []struct{ product, prefix string }{
	{"H100", "hopper-"}, {"H200", "hopper-"}, {"L40", "89-"}, {"L4", "89-"}, {"RTX-40", "89-"}, {"A100", ""}, {"A30", ""}, {"A10", "86-"}, {"A40", "86-"}, {"T4", "turing-"},
}

// teiBuild returns the prefix of the image's tag for the GPU.
func (d *draft) teiBuild() string {
	if d.in.GPU.Count == 0 {
		return "cpu-"
	}
	for _, b := range teiBuilds {
		if strings.Contains(d.in.GPU.Product, b.product) {
			return b.prefix
		}
	}
	d.addWarning("BuildUnknown", "/resources.gpu.product", "each image is built for one generation of GPUs, and this image is for A100 and A30", "name the product, or set image")
	return ""
}
