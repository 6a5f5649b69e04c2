// Command kubelab runs a real Kubernetes control plane with simulated GPU nodes.
package main

import (
	"os"

	"github.com/windlass-run/windlass/apps/kubelab"
)

func main() {
	os.Exit(kubelab.Main(os.Args))
}
