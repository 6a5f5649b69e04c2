// Package kubetest creates the objects of deployments/kubernetes in a test's cluster, so that tests
// run with exactly the permissions that an agent has.
package kubetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// The names of the agent's own objects in the manifests.
const (
	Namespace        = "windlass-system"
	account          = "windlass-agent"
	CredentialSecret = "windlass-agent-credential"
)

// Manifest reads a file of deployments/kubernetes.
func Manifest(name string) ([]apiruntime.Object, error) {
	data, err := read(filepath.Join("deployments", "kubernetes", name))
	if err != nil {
		return nil, err
	}
	docs := yaml.NewDocumentDecoder(io.NopCloser(bytes.NewReader(data)))
	defer func() { _ = docs.Close() }()
	var out []apiruntime.Object
	for {
		doc := make([]byte, 1<<20)
		n, err := docs.Read(doc)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		o, _, err := scheme.Codecs.UniversalDeserializer().Decode(doc[:n], nil, nil)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		out = append(out, o)
	}
}

// read reads a file of the repository. It works in the tests of every package.
func read(path string) ([]byte, error) {
	dir, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	for {
		data, err := os.ReadFile(filepath.Join(dir, path))
		if parent := filepath.Dir(dir); errors.Is(err, fs.ErrNotExist) && parent != dir {
			dir = parent
			continue
		}
		return data, err
	}
}

// Create creates the objects of a manifest. If dry is metav1.DryRunAll, the server only checks the
// objects.
func Create(ctx context.Context, c kubernetes.Interface, objects []apiruntime.Object, dry ...string) error {
	opts := metav1.CreateOptions{DryRun: dry}
	for _, o := range objects {
		var err error
		switch o := o.(type) {
		case *corev1.Namespace:
			_, err = c.CoreV1().Namespaces().Create(ctx, o, opts)
		case *corev1.ServiceAccount:
			_, err = c.CoreV1().ServiceAccounts(o.Namespace).Create(ctx, o, opts)
		case *corev1.Secret:
			_, err = c.CoreV1().Secrets(o.Namespace).Create(ctx, o, opts)
		case *corev1.Service:
			_, err = c.CoreV1().Services(o.Namespace).Create(ctx, o, opts)
		case *networkingv1.NetworkPolicy:
			_, err = c.NetworkingV1().NetworkPolicies(o.Namespace).Create(ctx, o, opts)
		case *corev1.ConfigMap:
			_, err = c.CoreV1().ConfigMaps(o.Namespace).Create(ctx, o, opts)
		case *rbacv1.ClusterRole:
			_, err = c.RbacV1().ClusterRoles().Create(ctx, o, opts)
		case *rbacv1.ClusterRoleBinding:
			_, err = c.RbacV1().ClusterRoleBindings().Create(ctx, o, opts)
		case *rbacv1.Role:
			_, err = c.RbacV1().Roles(o.Namespace).Create(ctx, o, opts)
		case *rbacv1.RoleBinding:
			_, err = c.RbacV1().RoleBindings(o.Namespace).Create(ctx, o, opts)
		case *admissionv1.ValidatingAdmissionPolicy:
			_, err = c.AdmissionregistrationV1().ValidatingAdmissionPolicies().Create(ctx, o, opts)
		case *admissionv1.ValidatingAdmissionPolicyBinding:
			_, err = c.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Create(ctx, o, opts)
		case *appsv1.Deployment:
			_, err = c.AppsV1().Deployments(o.Namespace).Create(ctx, o, opts)
		case *policyv1.PodDisruptionBudget:
			_, err = c.PolicyV1().PodDisruptionBudgets(o.Namespace).Create(ctx, o, opts)
		default:
			err = fmt.Errorf("kubetest cannot create an object of type %T", o)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// AgentClient returns a configuration with the permissions of the agent's service account, as in
// the manifest.
func AgentClient(ctx context.Context, admin *rest.Config) (*rest.Config, error) {
	c, err := kubernetes.NewForConfig(admin)
	if err != nil {
		return nil, err
	}
	objects, err := Manifest("agent-rbac.yaml")
	if err != nil {
		return nil, err
	}
	if err := Create(ctx, c, objects); err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, err
	}
	token, err := c.CoreV1().ServiceAccounts(Namespace).CreateToken(ctx, account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	out := rest.AnonymousClientConfig(admin)
	out.BearerToken = token.Status.Token
	return out, nil
}
