package access

import (
	"fmt"
	"os"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// serviceAccountNamespace is the path of the file that contains a pod's namespace.
const serviceAccountNamespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// LoadClient reads how to reach the API server, and the agent's own namespace. It reads a
// kubeconfig file. If kubeconfig is empty, it reads the files of the pod that the agent runs in.
func LoadClient(kubeconfig, context string) (_ *rest.Config, namespace string, _ error) {
	if kubeconfig == "" {
		if context != "" {
			return nil, "", fmt.Errorf("--context=%q is a context of a kubeconfig file: set --kubeconfig, too", context)
		}
		cfg, err := rest.InClusterConfig()
		if err != nil {
			return nil, "", fmt.Errorf("not in a pod with a service account; outside of one, set --kubeconfig: %w", err)
		}
		ns, err := os.ReadFile(serviceAccountNamespace)
		if err != nil {
			return nil, "", fmt.Errorf("the pod's namespace: %w", err)
		}
		return cfg, strings.TrimSpace(string(ns)), nil
	}
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig},
		&clientcmd.ConfigOverrides{CurrentContext: context})
	cfg, err := loader.ClientConfig()
	if err != nil {
		return nil, "", fmt.Errorf("--kubeconfig=%s: %w", kubeconfig, err)
	}
	namespace, _, err = loader.Namespace()
	if err != nil {
		return nil, "", fmt.Errorf("--kubeconfig=%s: %w", kubeconfig, err)
	}
	return cfg, namespace, nil
}
