package kubernetes_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	client "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

const (
	agentNamespace = "windlass-system"
	agentAccount   = "windlass-agent"
)

// manifest reads a file of deployments/kubernetes.
func manifest(name string) ([]apiruntime.Object, error) {
	data, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "..", "deployments", "kubernetes", name))
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

// create makes the objects of a manifest, with dry only in thought.
func create(ctx context.Context, c client.Interface, objects []apiruntime.Object, dry ...string) error {
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
			err = fmt.Errorf("%T is nothing that the tests can make", o)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// agentClient is what the agent's service account may do, as the manifest says.
func agentClient(ctx context.Context, admin *rest.Config) (*rest.Config, error) {
	c, err := client.NewForConfig(admin)
	if err != nil {
		return nil, err
	}
	objects, err := manifest("agent-rbac.yaml")
	if err != nil {
		return nil, err
	}
	if err := create(ctx, c, objects); err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, err
	}
	token, err := c.CoreV1().ServiceAccounts(agentNamespace).CreateToken(ctx, agentAccount, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	out := rest.AnonymousClientConfig(admin)
	out.BearerToken = token.Status.Token
	return out, nil
}

func TestTheRoleAllowsNothingBesideWhatTheAgentNeeds(t *testing.T) {
	h := newHarness(t)
	as, err := client.NewForConfig(unlimited(h.cfg.Client))
	require.NoError(t, err)
	ctx := t.Context()
	forbidden := func(err error, what string) {
		t.Helper()
		require.True(t, apierrors.IsForbidden(err), "%s: %v", what, err)
	}
	_, err = as.CoreV1().Secrets("").List(ctx, metav1.ListOptions{})
	forbidden(err, "list secrets")
	_, err = as.CoreV1().Secrets("default").Get(ctx, "any", metav1.GetOptions{})
	forbidden(err, "get a secret")
	_, err = as.CoreV1().Secrets("").Watch(ctx, metav1.ListOptions{})
	forbidden(err, "watch secrets")
	_, err = as.RbacV1().ClusterRoles().List(ctx, metav1.ListOptions{})
	forbidden(err, "list roles")
	// The role alone would allow these; the policy, which takes a moment to be known to
	// the API server, does not.
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	require.Eventually(t, func() bool {
		_, err = as.CoreV1().Secrets("default").Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, dry)
		return apierrors.IsForbidden(err)
	}, time.Minute, 50*time.Millisecond, "make a secret in a foreign namespace")
	_, err = as.CoreV1().ServiceAccounts("kube-system").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, dry)
	forbidden(err, "make a service account in a foreign namespace")
	require.ErrorContains(t, err, "writes only in namespaces with the label")
	_, err = as.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "any"}}, dry)
	forbidden(err, "make a namespace that is not labelled")
	forbidden(as.CoreV1().Namespaces().Delete(ctx, "default", metav1.DeleteOptions{}), "remove a foreign namespace")
}

func TestTheAgentsManifestIsOneThatKubernetesTakes(t *testing.T) {
	h := newHarness(t)
	objects, err := manifest("agent.yaml")
	require.NoError(t, err)
	require.NoError(t, create(t.Context(), h.api, objects, metav1.DryRunAll))
}
