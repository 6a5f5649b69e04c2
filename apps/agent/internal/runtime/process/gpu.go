package process

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// nvidiaPatience is the time limit of nvidia-smi, which hangs when a driver hangs.
const nvidiaPatience = 10 * time.Second

// DetectGPUs finds the NVIDIA devices of this host. It uses nvidia-smi, or otherwise the driver's
// files in /proc, which do not have the memory.
func DetectGPUs(ctx context.Context) []GPU {
	ctx, cancel := context.WithTimeout(ctx, nvidiaPatience)
	defer cancel()
	out, err := exec.CommandContext(ctx, "nvidia-smi", "--query-gpu=uuid,name,memory.total", "--format=csv,noheader,nounits").Output()
	if err == nil {
		return parseNvidiaSMI(string(out))
	}
	files, _ := filepath.Glob("/proc/driver/nvidia/gpus/*/information")
	slices.Sort(files)
	var gpus []GPU
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil {
			if g, ok := parseNvidiaInformation(string(b)); ok {
				gpus = append(gpus, g)
			}
		}
	}
	return gpus
}

func parseNvidiaSMI(csv string) []GPU {
	var gpus []GPU
	for line := range strings.Lines(csv) {
		f := strings.Split(strings.TrimSpace(line), ",")
		if len(f) != 3 || !strings.HasPrefix(f[0], "GPU-") {
			continue
		}
		mib, _ := strconv.Atoi(strings.TrimSpace(f[2]))
		gpus = append(gpus, GPU{ID: f[0], Product: productLabel(f[1]), MemoryMiB: mib})
	}
	return gpus
}

func parseNvidiaInformation(text string) (GPU, bool) {
	var g GPU
	for line := range strings.Lines(text) {
		k, v, _ := strings.Cut(line, ":")
		switch strings.TrimSpace(k) {
		case "Model":
			g.Product = productLabel(v)
		case "GPU UUID":
			g.ID = strings.TrimSpace(v)
		}
	}
	return g, strings.HasPrefix(g.ID, "GPU-") && !strings.Contains(g.ID, "?")
}

var notLabel = regexp.MustCompile(`[^-A-Za-z0-9_.]+`)

// productLabel returns a product's name in the form of Kubernetes' GPU discovery, so that one spec
// works in both kinds of region.
func productLabel(name string) string {
	return notLabel.ReplaceAllString(strings.TrimSpace(name), "-")
}
