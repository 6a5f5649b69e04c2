package nodeagent

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"strings"

	"golang.org/x/sync/singleflight"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/api/v1/resource"
	"k8s.io/kubernetes/pkg/fieldpath"
	"k8s.io/kubernetes/third_party/forked/golang/expansion"
)

// values computes the environment of containers.
type values struct {
	client kubernetes.Interface
	// flight joins equal reads, because pods of one deployment start together and read the same objects.
	flight singleflight.Group
}

// address has the addresses of a pod and its node.
type address struct {
	pod  netip.Addr
	node string
}

func newValues(client kubernetes.Interface) *values { return &values{client: client} }

// containerEnv returns the container's environment as the kubelet makes it. It sets envFrom and then env in
// order, and each env may refer to earlier ones as $(NAME). Variables of services are left out. The error
// names the missing object or key.
func (v *values) containerEnv(ctx context.Context, pod *corev1.Pod, c *corev1.Container, at address) (map[string]string, error) {
	env := map[string]string{}
	for _, from := range c.EnvFrom {
		data, err := v.envFrom(ctx, pod.Namespace, from)
		if err != nil {
			return nil, err
		}
		for name, value := range data {
			// Invalid names of variables are skipped.
			if name = from.Prefix + name; name != "" && !strings.Contains(name, "=") {
				env[name] = value
			}
		}
	}
	expand := newExpander(env)
	for _, e := range c.Env {
		if e.ValueFrom == nil {
			env[e.Name] = expand(e.Value)
			continue
		}
		value, found, err := v.valueFrom(ctx, pod, c, e.ValueFrom, at)
		if err != nil {
			return nil, err
		}
		if found {
			env[e.Name] = value
		}
	}
	return env, nil
}

// newExpander returns a function that replaces $(NAME) by env's value at the time of the call.
func newExpander(env map[string]string) func(string) string {
	mapping := expansion.MappingFuncFor(env)
	return func(s string) string { return expansion.Expand(s, mapping) }
}

func (v *values) envFrom(ctx context.Context, namespace string, from corev1.EnvFromSource) (map[string]string, error) {
	switch {
	case from.ConfigMapRef != nil:
		data, _, err := v.configMapData(ctx, namespace, from.ConfigMapRef.Name, isTrue(from.ConfigMapRef.Optional))
		return data, err
	case from.SecretRef != nil:
		data, _, err := v.secretData(ctx, namespace, from.SecretRef.Name, isTrue(from.SecretRef.Optional))
		return data, err
	default:
		return nil, nil
	}
}

func (v *values) valueFrom(ctx context.Context, pod *corev1.Pod, c *corev1.Container, from *corev1.EnvVarSource, at address) (value string, found bool, err error) {
	switch {
	case from.FieldRef != nil:
		value, err = fieldValue(pod, from.FieldRef.FieldPath, at)
		return value, err == nil, err
	case from.ResourceFieldRef != nil:
		if name := from.ResourceFieldRef.ContainerName; name == "" || name == c.Name {
			value, err = resource.ExtractContainerResourceValue(from.ResourceFieldRef, c)
		} else {
			value, err = resource.ExtractResourceValueByContainerName(from.ResourceFieldRef, pod, name)
		}
		return value, err == nil, err
	case from.ConfigMapKeyRef != nil:
		ref := from.ConfigMapKeyRef
		data, exists, err := v.configMapData(ctx, pod.Namespace, ref.Name, isTrue(ref.Optional))
		if err != nil || !exists {
			return "", false, err
		}
		return valueOfKey(data, ref.Key, isTrue(ref.Optional), "ConfigMap", pod.Namespace, ref.Name)
	case from.SecretKeyRef != nil:
		ref := from.SecretKeyRef
		data, exists, err := v.secretData(ctx, pod.Namespace, ref.Name, isTrue(ref.Optional))
		if err != nil || !exists {
			return "", false, err
		}
		return valueOfKey(data, ref.Key, isTrue(ref.Optional), "Secret", pod.Namespace, ref.Name)
	default:
		return "", false, fmt.Errorf("kubelab does not support this kind of valueFrom: %v", from)
	}
}

func valueOfKey(data map[string]string, name string, optional bool, kind, namespace, object string) (string, bool, error) {
	value, ok := data[name]
	if !ok && !optional {
		return "", false, fmt.Errorf("couldn't find key %s in %s %s/%s", name, kind, namespace, object)
	}
	return value, ok, nil
}

func fieldValue(pod *corev1.Pod, path string, at address) (string, error) {
	switch path {
	case "spec.nodeName":
		return pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	case "status.hostIP", "status.hostIPs":
		return at.node, nil
	case "status.podIP", "status.podIPs":
		return at.pod.String(), nil
	default:
		return fieldpath.ExtractFieldPathAsString(pod, path)
	}
}

func (v *values) configMapData(ctx context.Context, namespace, name string, optional bool) (map[string]string, bool, error) {
	return v.fetchData(ctx, "configmap", namespace, name, optional, func(ctx context.Context) (map[string]string, error) {
		object, err := v.client.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		data := maps.Clone(object.Data)
		if data == nil {
			data = map[string]string{}
		}
		for name, value := range object.BinaryData {
			data[name] = string(value)
		}
		return data, nil
	})
}

func (v *values) secretData(ctx context.Context, namespace, name string, optional bool) (map[string]string, bool, error) {
	return v.fetchData(ctx, "secret", namespace, name, optional, func(ctx context.Context) (map[string]string, error) {
		object, err := v.client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		data := make(map[string]string, len(object.Data))
		for name, value := range object.Data {
			data[name] = string(value)
		}
		return data, nil
	})
}

func (v *values) fetchData(ctx context.Context, kind, namespace, name string, optional bool, get func(context.Context) (map[string]string, error)) (map[string]string, bool, error) {
	data, err, _ := v.flight.Do(kind+"/"+namespace+"/"+name, func() (any, error) {
		// Several callers share this call, so it must not end with one caller's context.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
		defer cancel()
		return get(ctx)
	})
	switch {
	case apierrors.IsNotFound(err) && optional:
		return nil, false, nil
	case apierrors.IsNotFound(err):
		return nil, false, fmt.Errorf("%s %q not found", kind, name)
	case err != nil:
		return nil, false, fmt.Errorf("read %s %s/%s: %w", kind, namespace, name, err)
	}
	return data.(map[string]string), true, nil
}

func isTrue(b *bool) bool { return b != nil && *b }
