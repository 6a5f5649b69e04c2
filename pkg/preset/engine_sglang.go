package preset

import "time"

// sglang1 runs SGLang's server.
var sglang1 = &Preset{
	Name: "sglang", Version: 1, Title: "SGLang",
	DefaultEngine: "0.5.9", From: "0.4", Before: "0.6",
	Schemes:     []string{"hf", "file"},
	MemoryShare: 0.88,
	Sources: []Source{
		{"flags, port", "docs.sglang.io/advanced_features/server_arguments.html", "0.5.9"},
		{"metrics, health", "sgl-project/sglang docs/references/production_metrics.md at 00b08c4", "0.4"},
	},
	Aliases: map[string]string{
		"--tp": "--tp-size", "--tensor-parallel-size": "--tp-size", "--pp": "--pp-size", "--pipeline-parallel-size": "--pp-size",
		"--dp": "--dp-size", "--data-parallel-size": "--dp-size", "--model": "--model-path",
	},
	taken: map[string]string{
		"--model-path": "model", "--revision": "model", "--served-model-name": "name", "--context-length": "context", "--port": "", "--host": "",
		"--tp-size": "parallel.tensor", "--pp-size": "parallel.pipeline", "--dp-size": "parallel.data",
	},
	axes:         axes{tensor: true, pipeline: true, data: true},
	severalHosts: true, hostsFrom: "0.4",
	ranks: []string{"--nnodes", "--node-rank", "--dist-init-addr"},
	generate: func(d *draft) {
		d.spec.Image = "lmsysorg/sglang:v" + d.engine
		if compareVersions(d.engine, "0.5.9") >= 0 {
			d.spec.Command = []string{"sglang"}
			d.flags = flags{{values: []string{"serve"}}}
		} else {
			d.spec.Command = []string{"python3", "-m", "sglang.launch_server"}
		}
		d.flags.set("--model-path", d.weightsName())
		d.setIf("--revision", d.model.revision)
		d.setIf("--served-model-name", d.in.Name)
		d.flags.set("--host", "0.0.0.0")
		d.flags.set("--port", "$(PORT)")
		d.setNumber("--context-length", d.in.Context, 0)
		d.setNumber("--tp-size", d.parallel.Tensor, 1)
		d.setNumber("--pp-size", d.parallel.Pipeline, 1)
		d.setNumber("--dp-size", d.in.Parallel.Data, 1)
		if n := d.in.hostCount(); n > 1 {
			d.setNumber("--nnodes", n, 1)
			d.flags.set("--node-rank", "$(WINDLASS_RANK)")
			d.flags.set("--dist-init-addr", "$(WINDLASS_LEADER):20000")
		}
		d.flags.set("--enable-metrics")
		// At SIGTERM, SGLang answers the requests that it has before it ends.
		d.start("/health", 75*time.Second)
		d.setPort(0)
		d.huggingFace()
	},
	metrics: func(string) []Metric {
		return onHTTP("/metrics", "sglang:num_queue_reqs", "sglang:num_running_reqs", "sglang:token_usage")
	},
}
