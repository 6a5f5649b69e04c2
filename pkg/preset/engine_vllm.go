package preset

import "time"

// vllm1 runs vLLM's OpenAI-compatible server.
var vllm1 = &Preset{
	Name: "vllm", Version: 1, Title: "vLLM",
	DefaultEngine: "0.20.0", From: "0.9", Before: "0.21",
	Schemes:     []string{"hf", "file", "s3", "gs"},
	MemoryShare: 0.9,
	Sources: []Source{
		{"flags", "docs.vllm.ai/en/v0.8.5/serving/engine_args.html, vllm/engine/arg_utils.py and vllm/entrypoints/openai/cli_args.py", "0.8.5, 0.20"},
		{"metrics", "docs.vllm.ai/en/v0.12.0/design/metrics, docs.vllm.ai/en/v0.9.1/usage/metrics.html", "0.9.1, 0.12.0"},
		{"several hosts", "github.com/vllm-project/vllm/pull/23691", "0.12"},
		{"port, health", "vllm/entrypoints/openai: vllm serve, /health", "0.20"},
	},
	Aliases: map[string]string{
		"-tp": "--tensor-parallel-size", "-pp": "--pipeline-parallel-size", "-dp": "--data-parallel-size", "-q": "--quantization",
	},
	taken: map[string]string{
		"--model": "model", "--revision": "model", "--served-model-name": "name", "--max-model-len": "context", "--port": "", "--host": "",
		"--tensor-parallel-size": "parallel.tensor", "--pipeline-parallel-size": "parallel.pipeline", "--data-parallel-size": "parallel.data",
	},
	axes:         axes{tensor: true, pipeline: true, data: true},
	severalHosts: true, hostsFrom: "0.12",
	ranks: []string{"--nnodes", "--node-rank", "--master-addr", "--headless", "--distributed-executor-backend"},
	generate: func(d *draft) {
		d.spec.Image = "vllm/vllm-openai:v" + d.engine
		d.spec.Command = []string{"vllm"}
		if d.in.hostCount() > 1 {
			d.spec.Command = []string{"sh", "-c", vllmRanks, "vllm"}
		}
		d.flags = flags{{values: []string{"serve", d.weightsName()}}}
		d.setIf("--revision", d.model.revision)
		if d.model.scheme == "s3" || d.model.scheme == "gs" {
			d.flags.set("--load-format", "runai_streamer")
		}
		d.setIf("--served-model-name", d.in.Name)
		d.flags.set("--host", "0.0.0.0")
		d.flags.set("--port", "$(PORT)")
		d.setNumber("--max-model-len", d.in.Context, 0)
		d.setNumber("--tensor-parallel-size", d.parallel.Tensor, 1)
		d.setNumber("--pipeline-parallel-size", d.parallel.Pipeline, 1)
		d.setNumber("--data-parallel-size", d.in.Parallel.Data, 1)
		if n := d.in.hostCount(); n > 1 {
			d.flags.set("--distributed-executor-backend", "mp")
			d.setNumber("--nnodes", n, 1)
			d.flags.set("--node-rank", "$(WINDLASS_RANK)")
			d.flags.set("--master-addr", "$(WINDLASS_LEADER)")
		}
		grace := 30 * time.Second
		if compareVersions(d.engine, "0.20") >= 0 {
			// Without it, vLLM aborts requests at SIGTERM.
			d.flags.set("--shutdown-timeout", "60")
			grace = 75 * time.Second
		}
		d.start("/health", grace)
		d.setPort(0)
		d.huggingFace()
	},
	metrics: func(engine string) []Metric {
		cache := "vllm:kv_cache_usage_perc"
		if compareVersions(engine, "0.11") < 0 {
			cache = "vllm:gpu_cache_usage_perc"
		}
		return onHTTP("/metrics", "vllm:num_requests_waiting", "vllm:num_requests_running", cache)
	},
}

// vllmRanks runs the program $0 with the arguments. Only rank 0 serves requests, so the others need one more flag.
const vllmRanks = `[ "$WINDLASS_RANK" = 0 ] || set -- "$@" --headless; exec "$0" "$@"`

// huggingFace sets the folder of downloads for libraries of Hugging Face, and shared memory for several GPUs.
func (d *draft) huggingFace() {
	if d.in.CachePath != "" && d.model.scheme == "hf" {
		d.setEnv("HF_HOME", d.in.CachePath)
	}
	if d.in.GPU.Count > 1 {
		d.setShm(8192)
	}
}

// onHTTP returns metrics on the port for requests. An empty name means that the engine does not have the metric.
func onHTTP(path, queue, running, cache string) []Metric {
	var list []Metric
	for _, m := range []Metric{{Signal: "queue", Metric: queue}, {Signal: "running", Metric: running}, {Signal: "cache", Metric: cache}} {
		if m.Metric != "" {
			m.Port, m.Path = "http", path
			list = append(list, m)
		}
	}
	return list
}
