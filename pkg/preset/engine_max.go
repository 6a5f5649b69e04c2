package preset

import (
	"fmt"
	"strings"
	"time"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// max1 runs MAX by Modular.
var max1 = &Preset{
	Name: "max", Version: 1, Title: "MAX",
	DefaultEngine: "latest",
	Schemes:       []string{"hf", "file"},
	MemoryShare:   0.9,
	Sources: []Source{
		{"flags, health", "docs.modular.com/max/cli/serve", "26.4"},
		{"ports", "docs.modular.com/max/environment-variables: MAX_SERVE_PORT, MAX_SERVE_METRICS_ENDPOINT_PORT", "26.4"},
		{"metrics", "docs.modular.com/max/changelog: maxserve.num_requests_queued", "26.4"},
	},
	Aliases: map[string]string{"--model-path": "--model"},
	taken: map[string]string{
		"--model": "model", "--huggingface-model-revision": "model", "--served-model-name": "name", "--max-length": "context", "--port": "", "--host": "",
		"--devices": "/resources.gpu",
	},
	wholeInstance: true,
	generate: func(d *draft) {
		d.spec.Image = "modular/max-nvidia-full:" + d.engine
		d.spec.Command = []string{"max"}
		d.flags = flags{{values: []string{"serve"}}}
		d.flags.set("--model", d.weightsName())
		d.setIf("--huggingface-model-revision", d.model.revision)
		d.setIf("--served-model-name", d.in.Name)
		d.flags.set("--host", "0.0.0.0")
		d.flags.set("--port", "$(PORT)")
		d.setNumber("--max-length", d.in.Context, 0)
		d.flags.set("--devices", maxDevices(d.in.GPU.Count))
		d.start("/v1/health", 60*time.Second)
		d.setPort(0)
		d.spec.Ports = append(d.spec.Ports, &windlassv1.Port{Name: "metrics", Port: 8001})
		d.huggingFace()
	},
	metrics: func(string) []Metric {
		list := onHTTP("/metrics", "maxserve_num_requests_queued", "maxserve_num_requests_running", "")
		for i := range list {
			list[i].Port = "metrics"
		}
		return list
	},
}

func maxDevices(gpus int) string {
	if gpus == 0 {
		return "cpu"
	}
	ids := make([]string, gpus)
	for i := range ids {
		ids[i] = fmt.Sprint(i)
	}
	return "gpu:" + strings.Join(ids, ",")
}
