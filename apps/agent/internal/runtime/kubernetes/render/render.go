package render

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	coreac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/pkg/ident"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Render returns the objects of an assignment. Its error is a *runtime.Rejection that names the
// field and the fix. cfg must have passed Check.
func Render(cfg Config, a runtime.Assignment) (*Objects, error) {
	r, err := prepareRendering(cfg, a)
	if err != nil {
		return nil, err
	}
	variables, err := r.variablesSecret()
	if err != nil {
		return nil, err
	}
	pulls, err := r.pullSecrets()
	if err != nil {
		return nil, err
	}
	workload, err := r.workloadConfig(variables, pulls)
	if err != nil {
		return nil, err
	}
	claim, err := r.volumeClaim()
	if err != nil {
		return nil, err
	}
	out := &Objects{
		Namespace:       r.namespaceObject(),
		ServiceAccount:  coreac.ServiceAccount(r.name, r.namespace).WithLabels(r.objectLabels()).WithAutomountServiceAccountToken(false),
		Secrets:         []*coreac.SecretApplyConfiguration{r.identitySecret()},
		Claim:           claim,
		Workload:        workload,
		NetworkPolicies: r.networkPolicies(),
	}
	switch u := r.a.Unit; {
	case u == nil:
		out.Service, out.DisruptionBudget = r.serviceConfig(), r.disruptionBudget()
	case u.Hosts > 1 && u.Rank == 0:
		out.Service = r.ranksService()
	case r.hasSlotHost():
		out.Service = r.slotService()
	}
	if variables != nil {
		out.Secrets = append(out.Secrets, variables)
	}
	out.Secrets = append(out.Secrets, pulls...)
	if r.hasLoader() {
		out.Secrets = append(out.Secrets, r.loaderSecret())
	}
	return out, nil
}

// rendering is one assignment, with its defaults filled in.
type rendering struct {
	cfg  Config
	a    runtime.Assignment
	d    *agentv1.Deployment
	spec *windlassv1.DeploymentSpec
	role role
	// ports has the ports in the order of the spec. It is never empty.
	ports  []port
	health health
	gpu    gpu

	key       string
	name      string
	namespace string
}

// role is the role of the workload's instances. Values that it leaves out are taken from the spec.
type role struct {
	name      string
	image     string
	command   []string
	args      []string
	resources *windlassv1.Resources
	env       map[string]string
	// at is the path of the role in the spec, for errors.
	at string
	// stable means that instances are replaced in their slots.
	stable bool
}

type port struct {
	// name is the name in the spec. short is the name of the port on a Kubernetes pod.
	name, short string
	number      int32
}

const (
	defaultRole = "main"
	defaultPort = "http"
	// firstPort is the number of the first port without a number in the spec. Further ports get the
	// following numbers. They cannot conflict with other pods, because each pod has its own
	// address.
	firstPort = 8080
)

// refuseWith returns a rejection that is not retryable, because only another assignment helps.
func refuseWith(code, format string, args ...any) error {
	return &runtime.Rejection{Code: code, Message: fmt.Sprintf(format, args...)}
}

func invalidError(format string, args ...any) error {
	return refuseWith(runtime.ReasonInvalidSpec, format, args...)
}

func unsupportedError(format string, args ...any) error {
	return refuseWith(runtime.ReasonUnsupported, format, args...)
}

func prepareRendering(cfg Config, a runtime.Assignment) (*rendering, error) {
	d := a.Deployment
	r := &rendering{cfg: cfg, a: a, d: d, spec: d.GetSpec(), key: workloadKey(a)}
	if r.spec == nil {
		return nil, invalidError("spec: it is missing")
	}
	if err := r.checkIdentity(); err != nil {
		return nil, err
	}
	if rej := runtime.RefuseRoles(r.spec); a.Unit == nil && rej != nil {
		return nil, rej
	}
	if rej := runtime.RefuseHosts(r.spec); a.Unit == nil && rej != nil {
		return nil, rej // each rank is a separate workload
	}
	if a.Unit == nil && runtime.HasStableSlots(r.spec) {
		return nil, unsupportedError("roles[0].slots: an instance with a stable slot is a separate workload") // the runtime renders each
	}
	r.name = WorkloadName(a)
	r.namespace = cfg.NamespaceName(d.GetProjectName(), d.GetEnvironmentName(), d.GetEnvironmentId())
	if err := r.takeRole(); err != nil {
		return nil, err
	}
	if err := r.takePorts(); err != nil {
		return nil, err
	}
	if err := r.takeHealth(); err != nil {
		return nil, err
	}
	return r, r.takeGPU()
}

// checkIdentity returns an error for ids and names that Kubernetes does not accept in labels and
// names. It accepts all ids and names that the control plane makes.
func (r *rendering) checkIdentity() error {
	d := r.d
	if d.GetId() == "" {
		return invalidError("id: it is empty")
	}
	if !ident.ValidName(d.GetAppName()) {
		return invalidError("appName: %q is not a valid app name", d.GetAppName())
	}
	for _, n := range []struct{ field, name string }{{"projectName", d.GetProjectName()}, {"environmentName", d.GetEnvironmentName()}} {
		// An older control plane sends neither of them.
		if n.name != "" && !ident.ValidName(n.name) {
			return invalidError("%s: %q is not a valid name", n.field, n.name)
		}
	}
	for _, id := range []struct{ field, value string }{
		{"id", d.GetId()},
		{"workload_key", FamilyKey(r.a)},
		{"workspace_id", d.GetWorkspaceId()},
		{"project_id", d.GetProjectId()},
		{"environment_id", d.GetEnvironmentId()},
		{"app_id", d.GetAppId()},
	} {
		if len(validation.IsValidLabelValue(id.value)) > 0 {
			return invalidError("%s: %q is not a valid id, because it cannot be the value of a label", id.field, id.value)
		}
	}
	if d.GetReplicas() < 0 {
		return invalidError("replicas: %d is negative", d.GetReplicas())
	}
	if d.GetVersion() < 0 {
		return invalidError("version: %d is negative", d.GetVersion())
	}
	return nil
}

func (r *rendering) takeRole() error {
	s := r.spec
	r.role = role{defaultRole, s.GetImage(), s.GetCommand(), s.GetArgs(), s.GetResources(), nil, "", runtime.HasStableSlots(s)}
	switch roles := s.GetRoles(); len(roles) {
	case 0:
	case 1:
		ro := roles[0]
		r.role.name, r.role.at, r.role.env = ro.GetName(), "roles[0].", ro.GetEnv()
		if r.a.Unit != nil {
			r.role.at = r.a.Unit.At
		} else if ro.GetInstances() > 1 {
			return unsupportedError("roles[0].instances: %d instances that make one replica cannot be grouped on Kubernetes yet: set it to 1 and raise replicas", ro.GetInstances())
		}
		if ro.GetImage() != "" {
			r.role.image = ro.GetImage()
		}
		if len(ro.GetCommand()) > 0 {
			r.role.command = ro.GetCommand()
		}
		if len(ro.GetArgs()) > 0 {
			r.role.args = ro.GetArgs()
		}
		if ro.GetResources() != nil {
			r.role.resources = ro.GetResources()
		}
	default:
		return unsupportedError("roles: %d roles are not one workload", len(roles))
	}
	if !ident.ValidName(r.role.name) {
		return invalidError("roles[0].name: %q is not a valid name", r.role.name)
	}
	if r.role.image == "" {
		if len(r.role.command) == 0 {
			return invalidError("image: there is nothing to run: set image")
		}
		return unsupportedError("image: Kubernetes runs a command in an image: set image")
	}
	if strings.TrimSpace(r.role.image) != r.role.image {
		return invalidError("image: %q begins or ends with a space", r.role.image)
	}
	return nil
}

func (r *rendering) takePorts() error {
	spec := r.spec.GetPorts()
	if len(spec) == 0 {
		spec = []*windlassv1.Port{{Name: defaultPort}}
	}
	taken := map[int32]bool{}
	for i, p := range spec {
		switch n := p.GetPort(); {
		case n < 0 || n > 65535:
			return invalidError("ports[%d].port: %d is not a port: use 1 to 65535, or leave it out", i, n)
		case n > 0 && taken[n]:
			return invalidError("ports[%d].port: %d occurs twice", i, n)
		case n > 0:
			taken[n] = true
		}
	}
	names := map[string]bool{}
	next := int32(firstPort)
	for i, p := range spec {
		if !ident.ValidName(p.GetName()) {
			return invalidError("ports[%d].name: %q is not a valid name", i, p.GetName())
		}
		if names[p.GetName()] {
			return invalidError("ports[%d].name: %q occurs twice", i, p.GetName())
		}
		names[p.GetName()] = true
		n := p.GetPort()
		if n == 0 {
			for taken[next] {
				next++
			}
			n, taken[next] = next, true
		}
		r.ports = append(r.ports, port{name: p.GetName(), short: portName(p.GetName()), number: n})
	}
	return nil
}

// scopeLabels returns the labels of all objects of the environment.
func (r *rendering) scopeLabels() map[string]string {
	l := map[string]string{LabelManagedBy: ManagedBy, LabelRegion: r.cfg.Region}
	set(l, LabelWorkspace, r.d.GetWorkspaceId())
	set(l, LabelProject, r.d.GetProjectId())
	set(l, LabelEnvironment, r.d.GetEnvironmentId())
	set(l, LabelPartOf, r.d.GetProjectName())
	return l
}

// appLabels returns the labels of objects that all versions of the app share.
func (r *rendering) appLabels() map[string]string {
	l := r.scopeLabels()
	set(l, LabelApp, r.d.GetAppId())
	set(l, LabelName, r.d.GetAppName())
	return l
}

// objectLabels returns the labels of objects of the workload.
func (r *rendering) objectLabels() map[string]string {
	l := r.appLabels()
	l[LabelInstance] = r.name
	l[LabelComponent] = r.role.name
	l[LabelVersion] = "v" + strconv.Itoa(int(r.d.GetVersion()))
	l[LabelDeployment] = r.d.GetId()
	l[LabelWorkload] = r.key
	if u := r.a.Unit; u != nil {
		l[LabelUnitOf] = FamilyKey(r.a)
		l[LabelGroup], l[LabelSlot] = strconv.Itoa(u.Group), strconv.Itoa(u.Slot)
		if u.Hosts > 1 {
			l[LabelRank] = strconv.Itoa(u.Rank)
		}
	}
	return l
}

// familyLabels returns the labels of objects that the instances of a deployment with several roles
// share.
func (r *rendering) familyLabels() map[string]string {
	l := r.objectLabels()
	for _, own := range []string{LabelWorkload, LabelInstance, LabelComponent, LabelGroup, LabelSlot, LabelRank} {
		delete(l, own)
	}
	return l
}

// podLabels returns the labels of pods. A later assignment with the same template must not change
// them, because another label would change the template and replace instances.
func (r *rendering) podLabels() (map[string]string, error) {
	l := r.objectLabels()
	for _, changing := range []string{LabelVersion, LabelDeployment, LabelPartOf} {
		delete(l, changing)
	}
	l[LabelMadeFor] = r.d.GetId()
	for _, k := range slices.Sorted(maps.Keys(r.spec.GetKubernetes().GetPodLabels())) {
		v := r.spec.GetKubernetes().GetPodLabels()[k]
		at := fmt.Sprintf("kubernetes.podLabels[%q]", k)
		switch {
		case strings.HasPrefix(k, Domain), strings.HasPrefix(k, recommended):
			return nil, invalidError("%s: labels under %s and %s are Windlass's own: use another prefix", at, Domain, recommended)
		case k == "pod-template-hash", k == "controller-revision-hash":
			return nil, invalidError("%s: Kubernetes' controllers use it to find their pods: use another name", at)
		case len(validation.IsQualifiedName(k)) > 0:
			return nil, invalidError("%s: it is not a valid label name", at)
		case len(validation.IsValidLabelValue(v)) > 0:
			return nil, invalidError("%s: %q is not a valid label value", at, v)
		}
		l[k] = v
	}
	return l, nil
}

func set(l map[string]string, k, v string) {
	if v != "" {
		l[k] = v
	}
}
