package access

import (
	"fmt"

	appsv1 "k8s.io/client-go/kubernetes/typed/apps/v1"
	authenticationv1 "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	networkingv1 "k8s.io/client-go/kubernetes/typed/networking/v1"
	policyv1 "k8s.io/client-go/kubernetes/typed/policy/v1"
	rbacv1 "k8s.io/client-go/kubernetes/typed/rbac/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
)

// clients has typed clients of the API groups that the agent uses. Client-go's own clientset
// implements it, but a program that imports that clientset compiles the clients of all groups.
type clients interface {
	CoreV1() corev1.CoreV1Interface
	AppsV1() appsv1.AppsV1Interface
	NetworkingV1() networkingv1.NetworkingV1Interface
	PolicyV1() policyv1.PolicyV1Interface
	RbacV1() rbacv1.RbacV1Interface
	AuthorizationV1() authorizationv1.AuthorizationV1Interface
	AuthenticationV1() authenticationv1.AuthenticationV1Interface
}

// clientset implements clients with a real API server.
type clientset struct {
	core           *corev1.CoreV1Client
	apps           *appsv1.AppsV1Client
	networking     *networkingv1.NetworkingV1Client
	policy         *policyv1.PolicyV1Client
	rbac           *rbacv1.RbacV1Client
	authorization  *authorizationv1.AuthorizationV1Client
	authentication *authenticationv1.AuthenticationV1Client
}

func (c *clientset) CoreV1() corev1.CoreV1Interface                   { return c.core }
func (c *clientset) AppsV1() appsv1.AppsV1Interface                   { return c.apps }
func (c *clientset) NetworkingV1() networkingv1.NetworkingV1Interface { return c.networking }
func (c *clientset) PolicyV1() policyv1.PolicyV1Interface             { return c.policy }
func (c *clientset) RbacV1() rbacv1.RbacV1Interface                   { return c.rbac }
func (c *clientset) AuthorizationV1() authorizationv1.AuthorizationV1Interface {
	return c.authorization
}

func (c *clientset) AuthenticationV1() authenticationv1.AuthenticationV1Interface {
	return c.authentication
}

// newClientset returns clients that share their connections, and their rate limit if cfg has one.
func newClientset(cfg *rest.Config) (*clientset, error) {
	shared := rest.CopyConfig(cfg)
	if shared.RateLimiter == nil && shared.QPS > 0 {
		shared.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(shared.QPS, shared.Burst)
	}
	transport, err := rest.HTTPClientFor(shared)
	if err != nil {
		return nil, fmt.Errorf("kubernetes client: %w", err)
	}
	c := &clientset{}
	for _, open := range []func() error{
		func() (err error) { c.core, err = corev1.NewForConfigAndClient(shared, transport); return err },
		func() (err error) { c.apps, err = appsv1.NewForConfigAndClient(shared, transport); return err },
		func() (err error) {
			c.networking, err = networkingv1.NewForConfigAndClient(shared, transport)
			return err
		},
		func() (err error) { c.policy, err = policyv1.NewForConfigAndClient(shared, transport); return err },
		func() (err error) { c.rbac, err = rbacv1.NewForConfigAndClient(shared, transport); return err },
		func() (err error) {
			c.authorization, err = authorizationv1.NewForConfigAndClient(shared, transport)
			return err
		},
		func() (err error) {
			c.authentication, err = authenticationv1.NewForConfigAndClient(shared, transport)
			return err
		},
	} {
		if err := open(); err != nil {
			return nil, fmt.Errorf("kubernetes client: %w", err)
		}
	}
	return c, nil
}
