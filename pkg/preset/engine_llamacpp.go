package preset

import "time"

// llamacpp1 runs llama-server of llama.cpp.
var llamacpp1 = &Preset{
	Name: "llamacpp", Version: 1, Title: "llama.cpp",
	Schemes:     []string{"hf", "file", "https"},
	MemoryShare: 0.95,
	Sources: []Source{
		{"flags, port, health", "ggml-org/llama.cpp tools/server/README.md", "00dc805"},
		{"metrics", "ggml-org/llama.cpp tools/server/README.md, GET /metrics", "00dc805"},
	},
	Aliases: map[string]string{
		"-m": "--model", "-mu": "--model-url", "-hf": "--hf-repo", "-hfr": "--hf-repo", "-c": "--ctx-size", "-a": "--alias",
		"-ngl": "--n-gpu-layers", "--gpu-layers": "--n-gpu-layers", "-ctk": "--cache-type-k", "-ctv": "--cache-type-v",
		"-cmoe": "--cpu-moe", "-ncmoe": "--n-cpu-moe",
	},
	taken: map[string]string{
		"--model": "model", "--model-url": "model", "--hf-repo": "model", "--ctx-size": "context", "--alias": "name", "--port": "", "--host": "",
	},
	wholeInstance: true,
	generate: func(d *draft) {
		d.spec.Image = "ghcr.io/ggml-org/llama.cpp:server"
		if d.in.GPU.Count > 0 {
			d.spec.Image += "-cuda"
		}
		if d.engine != "" {
			d.spec.Image += "-" + d.engine
		}
		d.spec.Command = []string{"/app/llama-server"}
		switch d.model.scheme {
		case "hf":
			d.flags.set("--hf-repo", d.model.path)
		case "file":
			d.flags.set("--model", d.model.path)
		default:
			d.flags.set("--model-url", d.weightsName())
		}
		if d.model.revision != "" {
			d.fail("RevisionUnsupported", "model", "llama.cpp loads only the newest revision of a repository", "remove @ and the revision, or use file:// or https://")
		}
		d.setIf("--alias", d.in.Name)
		d.flags.set("--host", "0.0.0.0")
		d.flags.set("--port", "$(PORT)")
		d.setNumber("--ctx-size", d.in.Context, 0)
		if d.in.GPU.Count > 0 {
			// No model has 999 layers, so all layers are on GPUs.
			d.flags.set("--n-gpu-layers", "999")
		}
		d.flags.set("--metrics")
		d.start("/health", 60*time.Second)
		d.setPort(0)
		if d.in.CachePath != "" && d.model.scheme != "file" {
			d.setEnv("LLAMA_CACHE", d.in.CachePath)
		}
	},
	metrics: func(string) []Metric {
		return onHTTP("/metrics", "llamacpp:requests_deferred", "llamacpp:requests_processing", "")
	},
}
