package desired

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	coreac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
)

// A pod template is rendered once for each template hash. The workload keeps it as it was sent.
// Otherwise, pods could get a new template by scaling, by adoption by a newer deployment, or by an
// agent that renders differently. That would replace instances for no reason.

// maxTemplate is the maximum size of the kept template. Kubernetes allows 256 KiB for all
// annotations of an object.
const maxTemplate = 192 << 10

func packTemplate(t *coreac.PodTemplateSpecApplyConfiguration) (string, error) {
	data, err := json.Marshal(t)
	if err != nil {
		return "", fmt.Errorf("encode the pod template: %w", err)
	}
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return "", fmt.Errorf("compress the pod template: %w", err)
	}
	if _, err := z.Write(data); err != nil {
		return "", fmt.Errorf("compress the pod template: %w", err)
	}
	if err := z.Close(); err != nil {
		return "", fmt.Errorf("compress the pod template: %w", err)
	}
	return base64.StdEncoding.EncodeToString(b.Bytes()), nil
}

func unpackTemplate(s string) (*coreac.PodTemplateSpecApplyConfiguration, error) {
	data, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		return nil, fmt.Errorf("the kept pod template: %w", err)
	}
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("the kept pod template: %w", err)
	}
	// A template that a person wrote may unpack to any size.
	if data, err = io.ReadAll(io.LimitReader(z, 16<<20)); err != nil {
		return nil, fmt.Errorf("the kept pod template: %w", err)
	}
	t := &coreac.PodTemplateSpecApplyConfiguration{}
	if err := json.Unmarshal(data, t); err != nil {
		return nil, fmt.Errorf("the kept pod template: %w", err)
	}
	return t, nil
}

// secretsNamed returns the names of the Secrets that pods of a template need, sorted.
func secretsNamed(t *coreac.PodTemplateSpecApplyConfiguration) []string {
	if t == nil || t.Spec == nil {
		return nil
	}
	// SecretsOf takes the typed pod spec. Its JSON is the same as that of t.Spec.
	data, err := json.Marshal(t.Spec)
	if err != nil {
		return nil
	}
	var spec corev1.PodSpec
	if err := json.Unmarshal(data, &spec); err != nil {
		return nil
	}
	return render.SecretsOf(&spec)
}
