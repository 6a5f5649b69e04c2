package render

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// These annotations exist only in caches. They replace fields that the caches leave out.
const (
	// AnnotationReplicasOwner names the field managers, except ours, that have set spec.replicas.
	AnnotationReplicasOwner = "cache.windlass.run/replicas-owner"
	// AnnotationSecretsUsed lists the Secrets that a pod refers to.
	AnnotationSecretsUsed = "cache.windlass.run/secrets"
	// AnnotationTemplatePrint is a hash of all fields of a pod template. It changes exactly when
	// Kubernetes considers the template to be another one. The agent's own hash stays the same when
	// another client edits a template.
	AnnotationTemplatePrint = "cache.windlass.run/template"
)

// PrintOf returns a hash of a template. It leaves out the label that Kubernetes adds to the
// template of a ReplicaSet.
func PrintOf(t *corev1.PodTemplateSpec) string {
	bare := *t
	bare.Labels = nil
	for k, v := range t.Labels {
		if k != appsv1.DefaultDeploymentUniqueLabelKey {
			metav1.SetMetaDataLabel(&bare.ObjectMeta, k, v)
		}
	}
	data, err := json.Marshal(bare)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// SecretsOf returns the names of the Secrets that a pod needs, sorted. It leaves out optional
// Secrets, because the pod starts without them.
func SecretsOf(s *corev1.PodSpec) []string {
	var out []string
	for _, c := range slices.Concat(s.InitContainers, s.Containers) {
		for _, from := range c.EnvFrom {
			if from.SecretRef != nil {
				out = append(out, from.SecretRef.Name)
			}
		}
		for _, e := range c.Env {
			if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
				out = append(out, e.ValueFrom.SecretKeyRef.Name)
			}
		}
	}
	for _, v := range s.Volumes {
		if v.Secret != nil && (v.Secret.Optional == nil || !*v.Secret.Optional) {
			out = append(out, v.Secret.SecretName)
		}
	}
	for _, p := range s.ImagePullSecrets {
		out = append(out, p.Name)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// SecretNames returns the names in the annotation AnnotationSecretsUsed of a cached pod.
func SecretNames(p *corev1.Pod) []string {
	if s := p.Annotations[AnnotationSecretsUsed]; s != "" {
		return strings.Split(s, ",")
	}
	return nil
}
