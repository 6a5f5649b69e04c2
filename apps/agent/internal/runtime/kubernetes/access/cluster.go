package access

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreac "k8s.io/client-go/applyconfigurations/core/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// Cluster is the Kubernetes cluster of an agent, with the agent's own namespace.
type Cluster struct {
	Client    *rest.Config
	Namespace string
}

// OpenCluster reads how to reach the cluster (LoadClient). If namespace is empty, it uses the
// namespace of the pod or of the kubeconfig.
func OpenCluster(kubeconfig, context, namespace string) (*Cluster, error) {
	client, own, err := LoadClient(kubeconfig, context)
	if err != nil {
		return nil, err
	}
	if namespace == "" {
		namespace = own
	}
	return &Cluster{Client: client, Namespace: namespace}, nil
}

// Hold runs f while this agent holds the lease with this name (Lease).
func (c *Cluster) Hold(ctx context.Context, name, identity string, log *slog.Logger, f func(ctx context.Context) error) error {
	return Lease{Client: c.Client, Namespace: c.Namespace, Name: name, Identity: identity, Log: log}.Hold(ctx, f)
}

// LogTo makes the client library log to log. It applies to the whole program, because the library
// has only one logger.
func LogTo(log *slog.Logger) { klog.SetSlogLogger(log.With("component", "kubernetes-client")) }

// Kept is one value in a Secret of the agent's namespace. The agents in this namespace share it.
// The Secret must exist, because the agent's role allows it to change this Secret but not to create
// one.
type Kept struct {
	client    typedcorev1.CoreV1Interface
	namespace string
	name      string
}

// keptKey is the key of the value in the Secret.
const keptKey = "value"

const keptTimeout = 10 * time.Second

// Keep returns the Kept of the Secret with this name. It does not read the Secret.
func (c *Cluster) Keep(name string) (*Kept, error) {
	cfg := rest.CopyConfig(c.Client)
	cfg.Timeout = keptTimeout
	client, err := typedcorev1.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("kubernetes client: %w", err)
	}
	return &Kept{client: client, namespace: c.Namespace, name: name}, nil
}

// Load returns the value, or nil if there is none yet.
func (k *Kept) Load(ctx context.Context) ([]byte, error) {
	s, err := k.get(ctx)
	if err != nil {
		return nil, err
	}
	return s.Data[keptKey], nil
}

func (k *Kept) get(ctx context.Context) (*corev1.Secret, error) {
	s, err := k.client.Secrets(k.namespace).Get(ctx, k.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("there is no Secret %s in namespace %s: create an empty Secret with this name", k.name, k.namespace)
	}
	if err != nil {
		return nil, fmt.Errorf("read Secret %s/%s: %w", k.namespace, k.name, err)
	}
	return s, nil
}

// Files is a Secret of the agent's namespace whose keys are file names. Like the Secret of Kept, it
// must exist.
type Files struct{ kept *Kept }

// KeepFiles returns the Files of the Secret with this name. It does not read the Secret.
func (c *Cluster) KeepFiles(name string) (Files, error) {
	kept, err := c.Keep(name)
	return Files{kept}, err
}

// Get returns the files and the Secret's version. An empty Secret has no files.
func (f Files) Get(ctx context.Context) (map[string][]byte, string, error) {
	s, err := f.kept.get(ctx)
	if err != nil {
		return nil, "", err
	}
	return s.Data, s.ResourceVersion, nil
}

// Put replaces the files. It fails if the Secret has another version by now.
func (f Files) Put(ctx context.Context, files map[string][]byte, version string) error {
	return f.kept.apply(ctx, coreac.Secret(f.kept.name, f.kept.namespace).WithResourceVersion(version).WithData(files))
}

// ShareKey returns a key that the agents share in addition to the value. The first agent that calls
// ShareKey shares its own key.
func (k *Kept) ShareKey(ctx context.Context, own []byte) ([]byte, error) {
	s, err := k.get(ctx)
	if err != nil {
		return nil, err
	}
	if len(s.Data[nameKey]) > 0 {
		return s.Data[nameKey], nil
	}
	// The key and the value have different field managers, so that a write of one does not remove
	// the other. This write does not replace another agent's key.
	config := coreac.Secret(k.name, k.namespace).WithResourceVersion(s.ResourceVersion).WithData(map[string][]byte{nameKey: own})
	if _, err := k.client.Secrets(k.namespace).Apply(ctx, config, metav1.ApplyOptions{FieldManager: FieldManager + "-names"}); err != nil {
		return nil, fmt.Errorf("write Secret %s/%s: %w", k.namespace, k.name, err)
	}
	return own, nil
}

// nameKey is the key in the Secret for the key of ShareKey, with which the names of other Secrets
// are made.
const nameKey = "name-key"

// Store replaces the value.
func (k *Kept) Store(ctx context.Context, value []byte) error {
	return k.apply(ctx, coreac.Secret(k.name, k.namespace).WithData(map[string][]byte{keptKey: value}))
}

func (k *Kept) apply(ctx context.Context, secret *coreac.SecretApplyConfiguration) error {
	_, err := k.client.Secrets(k.namespace).Apply(ctx, secret, metav1.ApplyOptions{FieldManager: FieldManager, Force: true})
	if err != nil {
		return fmt.Errorf("write Secret %s/%s: %w", k.namespace, k.name, err)
	}
	return nil
}
