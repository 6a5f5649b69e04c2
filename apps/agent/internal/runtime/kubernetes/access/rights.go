package access

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	rbacac "k8s.io/client-go/applyconfigurations/rbac/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
	"github.com/windlass-run/windlass/pkg/backoff"
)

const (
	// workloadsRole is the ClusterRole of agent-rbac.yaml with the agent's permissions in the
	// namespaces of environments. The agent binds itself to the role only in these namespaces.
	workloadsRole = "windlass-agent-workloads"
	// rightsBinding is the name of the binding in each of these namespaces.
	rightsBinding = "windlass-agent"

	// A binding takes effect some milliseconds later, when the API server's authorizer has read it.
	rightsPoll, rightsPatience = 20 * time.Millisecond, 10 * time.Second
	// rightsAgain is the shortest time between two checks of the bindings in all namespaces.
	rightsAgain = 5 * time.Second
)

// rights records the namespaces in which the agent is known to have its permissions.
type rights struct {
	mu   sync.Mutex
	have map[string]bool
	// again is signalled to check all namespaces, because a call was forbidden.
	again chan struct{}
}

func newRights() *rights { return &rights{have: map[string]bool{}, again: make(chan struct{}, 1)} }

func (r *rights) hasNamespace(namespace string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.have[namespace]
}

func (r *rights) noteNamespace(namespace string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.have[namespace] = true
}

// doubtAll forgets all namespaces, because a binding may have been removed.
func (r *rights) doubtAll() {
	r.mu.Lock()
	clear(r.have)
	r.mu.Unlock()
	select {
	case r.again <- struct{}{}:
	default:
	}
}

// Enter gives the agent its permissions in a namespace of an environment. It creates no binding if
// the agent already has them, for example as an administrator.
func (a *API) Enter(ctx context.Context, namespace string) error {
	if a.rights.hasNamespace(namespace) {
		return nil
	}
	allowed, err := a.allowedIn(ctx, namespace)
	if err != nil {
		return err
	}
	if !allowed {
		if err := a.bindNamespace(ctx, namespace); err != nil {
			return err
		}
		if err := a.awaitRights(ctx, namespace); err != nil {
			return err
		}
	}
	a.rights.noteNamespace(namespace)
	return nil
}

// allowedIn reports whether the agent may write Secrets in the namespace. Only workloadsRole allows
// this.
func (a *API) allowedIn(ctx context.Context, namespace string) (allowed bool, err error) {
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "create", Resource: "secrets"},
	}}
	err = a.Call(ctx, "review the agent's rights in namespace "+namespace, func(ctx context.Context) error {
		out, err := a.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		if err == nil {
			allowed = out.Status.Allowed
		}
		return err
	})
	return allowed, err
}

func (a *API) bindNamespace(ctx context.Context, namespace string) error {
	var user string
	err := a.Call(ctx, "review the agent's user", func(ctx context.Context) error {
		out, err := a.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if err == nil {
			user = out.Status.UserInfo.Username
		}
		return err
	})
	if err != nil {
		return err
	}
	binding := rbacac.RoleBinding(rightsBinding, namespace).
		WithLabels(map[string]string{render.LabelManagedBy: render.ManagedBy}).
		WithRoleRef(rbacac.RoleRef().WithAPIGroup(rbacv1.GroupName).WithKind("ClusterRole").WithName(workloadsRole)).
		WithSubjects(subjectOf(user))
	return a.Call(ctx, "apply RoleBinding "+namespace+"/"+rightsBinding, func(ctx context.Context) error {
		_, err := a.RbacV1().RoleBindings(namespace).Apply(ctx, binding, metav1.ApplyOptions{FieldManager: FieldManager, Force: true})
		return foundError(err)
	})
}

// subjectOf returns the RBAC subject of a user.
func subjectOf(user string) *rbacac.SubjectApplyConfiguration {
	if account, ok := strings.CutPrefix(user, "system:serviceaccount:"); ok {
		if namespace, name, ok := strings.Cut(account, ":"); ok {
			return rbacac.Subject().WithKind(rbacv1.ServiceAccountKind).WithNamespace(namespace).WithName(name)
		}
	}
	return rbacac.Subject().WithKind(rbacv1.UserKind).WithAPIGroup(rbacv1.GroupName).WithName(user)
}

func (a *API) awaitRights(ctx context.Context, namespace string) error {
	bounded, cancel := context.WithTimeout(ctx, rightsPatience)
	defer cancel()
	for {
		allowed, err := a.allowedIn(bounded, namespace)
		if err == nil && allowed {
			return nil
		}
		if backoff.Sleep(bounded, rightsPoll) != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return unavailableRejection("RoleBinding "+namespace+"/"+rightsBinding, fmt.Errorf(
				"it gives the agent no rights after %s: apply the agent-rbac.yaml of its release, which has the ClusterRole %s", rightsPatience, workloadsRole))
		}
	}
}

// EnterAll calls Enter for all namespaces of the region, and logs failures. After the next
// forbidden call, KeepRights tries again.
func (a *API) EnterAll(ctx context.Context) {
	var names []string
	for _, ns := range a.Caches.Every(render.KindNamespace) {
		if ns.GetDeletionTimestamp() == nil {
			names = append(names, ns.GetName())
		}
	}
	slices.Sort(names)
	for _, name := range names {
		if err := a.Enter(ctx, name); err != nil && ctx.Err() == nil {
			a.cfg.Log.WarnContext(ctx, "the agent lacks its rights in a namespace", "namespace", name, "error", err)
		}
	}
}

// KeepRights calls EnterAll after each forbidden call, until ctx ends.
func (a *API) KeepRights(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.rights.again:
		}
		a.EnterAll(ctx)
		if backoff.Sleep(ctx, rightsAgain) != nil {
			return
		}
	}
}
