package preset

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// nim1 runs a NIM for LLMs. The model in app files is the NIM's image.
var nim1 = &Preset{
	Name: "nim", Version: 1, Title: "NIM",
	From: "1", Before: "2",
	Schemes: []string{"oci"},
	Sources: []Source{
		{"environment, port, cache", "docs.nvidia.com/nim/large-language-models: configuration", "1.x"},
		{"health", "docs.nvidia.com/nim/large-language-models: /v1/health/ready", "1.x"},
		{"metrics", "docs.nvidia.com/nim/large-language-models/latest/observability.html: /v1/metrics", "1.x"},
	},
	wholeInstance: true,
	generate: func(d *draft) {
		d.spec.Image = d.model.path
		if version := nimVersion(d.model.path); d.engine == "" && version != "" {
			d.engine = version
			d.checkEngine()
		} else if d.engine != "" && d.engine != version {
			d.fail("EngineVersionTwice", "engineVersion", fmt.Sprintf("%s is not the version of the image", d.engine), "remove it: the image's tag is the version")
		}
		for _, name := range d.in.optionNames() {
			d.fail("OptionUnsupported", "options."+name, "a NIM takes environment variables and no flags", "set the variable in env")
		}
		if d.in.Name != "" {
			d.setEnv("NIM_SERVED_MODEL_NAME", d.in.Name)
		}
		if d.in.Context > 0 {
			d.setEnv("NIM_MAX_MODEL_LEN", strconv.Itoa(d.in.Context))
		}
		if d.in.CachePath != "" {
			d.setEnv("NIM_CACHE_PATH", d.in.CachePath)
		}
		d.addNote("KeyNeeded", "/secrets", "a NIM downloads its model with an NGC key, and the region needs the key for the image", "add a secret with envName NGC_API_KEY, and one with imagePull")
		d.start("/v1/health/ready", 60*time.Second)
		d.setPort(8000)
		d.setShm(16384)
	},
	metrics: func(string) []Metric {
		return onHTTP("/v1/metrics", "num_requests_waiting", "num_requests_running", "gpu_cache_usage_perc")
	},
}

// nimVersion returns the tag of an image if it is a version, else "".
func nimVersion(image string) string {
	name := image[strings.LastIndex(image, "/")+1:]
	name, _, _ = strings.Cut(name, "@")
	if _, tag, ok := strings.Cut(name, ":"); ok && len(versionNumbers(tag)) > 0 {
		return tag
	}
	return ""
}
