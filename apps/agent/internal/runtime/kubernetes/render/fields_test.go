package render

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// notApplicable has the fields that do not change the Kubernetes objects, with the reason. A
// message stands for all its fields.
var notApplicable = map[string]string{
	"preview_host":          "the agent tells gateways",
	"template_hash":         "the assignment has it as text, in TemplateHash",
	"role_templates":        "as template_hash, for each role",
	"secrets.secret":        "the name is for the control plane; the value is in the assignment",
	"secrets.version":       "as secrets.secret",
	"wake":                  "the number of replicas that the agent runs when a request wakes the app",
	"scaling":               "the control plane decides by it; the agent measures its metrics",
	"raise_alone":           "decides whether the agent runs more replicas while it is cut off",
	"spec.regions":          "a region gets only its own deployments",
	"spec.replicas":         "the default for regions; deployment.replicas has this region's number",
	"spec.min_ready":        "decides when a rollout goes on; the control plane reads it",
	"spec.overrides":        "the control plane applies them, and sends the result without them",
	"spec.pinned_overrides": "as spec.overrides",
	"spec.inherited_env":    "says where variables came from, for the control plane; the variables are in env",
	"spec.routing":          "gateways obey it; the control plane sends the live version's with the app's route",
	"spec.serve":            "the control plane made image, args and the rest of the spec from it",
	"spec.generated_by":     "as spec.serve",
	"spec.generated":        "the agent reads the engine's metrics by it; its variables are in env",
	"spec.secrets.secret":   "the value is in the variable, whatever its name is; for pull secrets, see below",
	"spec.model":            "servers of another app load it; it has no pods",
	"spec.models":           "decides which models the agent lets the pods load",
	"spec.roles.entry":      "decides to which instances routes lead; the agent tells gateways",
	"spec.roles.together":   "decides which roles have another template; the control plane computes the templates",
	"moving_roles":          "the agent replaces pods of these roles; the pods do not differ",
	"spec.update":           "the agent replaces pods in that order; the pods do not differ",
	"spec.gang":             "decides when pods are made; the pods do not differ",
	"spec.topology":         "decides on which nodes a gang starts; a unit's domain has the result",
	"spec.pairing":          "gateways obey it; the agent tells them which instances are pairs",
	"spec.secrets.version":  "tells the control plane which value to send",
}

// special has the fields that cannot be changed to "one more", because the spec would then
// contradict itself.
var special = map[string]struct {
	base, change func(*windlassv1.DeploymentSpec)
}{
	"spec.secrets.env_name": {change: func(s *windlassv1.DeploymentSpec) { s.Secrets[0].EnvName = "OTHER_KEY" }},
	"spec.secrets.image_pull": {change: func(s *windlassv1.DeploymentSpec) {
		s.Secrets[0].ImagePull, s.Secrets[0].EnvName = true, ""
	}},
	"spec.ports.name":                      {base: func(s *windlassv1.DeploymentSpec) { s.HealthCheck.Port = "" }},
	"spec.health_check.port":               {change: func(s *windlassv1.DeploymentSpec) { s.HealthCheck.Port = s.Ports[1].Name }},
	"spec.roles.resources.gpu.pool":        {change: func(s *windlassv1.DeploymentSpec) { s.Roles[0].Resources.Gpu.Pool = "" }},
	"spec.layout":                          {change: func(s *windlassv1.DeploymentSpec) { s.Layout = windlassv1.Layout_LAYOUT_POOLED }},
	"spec.roles.hosts":                     {change: func(s *windlassv1.DeploymentSpec) { s.Roles[0].Hosts = 2 }},
	"spec.roles.slots":                     {change: func(s *windlassv1.DeploymentSpec) { s.Roles[0].Slots = windlassv1.RoleSpec_SLOTS_STABLE }},
	"spec.model_cache.host_path":           {base: onTheHost},
	"spec.kubernetes.security.run_as_root": {base: func(s *windlassv1.DeploymentSpec) { s.Kubernetes.RunAsUser = nil }},
	"spec.model_cache.claim.single_node":   {base: func(s *windlassv1.DeploymentSpec) { s.Kubernetes.ZoneSpread = 0 }},
	"spec.model_cache.retention":           {change: func(s *windlassv1.DeploymentSpec) { s.ModelCache.Retention = windlassv1.ModelCache_RETENTION_DELETE }},
	"spec.kubernetes.zone_spread": {change: func(s *windlassv1.DeploymentSpec) {
		s.Kubernetes.ZoneSpread = windlassv1.KubernetesOptions_ZONE_SPREAD_NONE
	}},
	"spec.kubernetes.tolerations.effect":        {change: func(s *windlassv1.DeploymentSpec) { s.Kubernetes.Tolerations[0].Effect = "NoExecute" }},
	"spec.kubernetes.security.add_capabilities": {change: func(s *windlassv1.DeploymentSpec) { s.Kubernetes.Security.AddCapabilities = []string{"SYS_NICE"} }},
	"spec.resources.gpu.pool":                   {change: func(s *windlassv1.DeploymentSpec) { s.Resources.Gpu.Pool = "" }},
	"spec.resources.gpu.resource_name":          {change: func(s *windlassv1.DeploymentSpec) { s.Resources.Gpu.ResourceName = "nvidia.com/gpu.shared" }},
	"spec.roles.resources.gpu.resource_name":    {change: func(s *windlassv1.DeploymentSpec) { s.Roles[0].Resources.Gpu.ResourceName = "nvidia.com/gpu.shared" }},
}

// withoutRoles moves the fields of the one role to the spec itself.
func withoutRoles(s *windlassv1.DeploymentSpec) {
	s.Image, s.Command, s.Args, s.Resources = s.Roles[0].Image, s.Roles[0].Command, s.Roles[0].Args, s.Roles[0].Resources
	s.Roles = nil
}

func onTheHost(s *windlassv1.DeploymentSpec) {
	s.ModelCache.Claim, s.ModelCache.HostPath, s.ModelCache.Retention = nil, "/var/cache/models", windlassv1.ModelCache_RETENTION_UNSPECIFIED
}

// This test walks all fields of the spec, because otherwise Kubernetes regions could silently
// ignore a new field.
func TestFields_ReachKubernetesOrAreNotApplicable(t *testing.T) {
	unused := map[string]bool{}
	for path, reason := range notApplicable {
		require.NotEmpty(t, reason, path)
		unused[path] = true
	}
	seen := map[string]bool{}
	var walk func(path string, at protoreflect.MessageDescriptor, find func(*agentv1.Deployment) protoreflect.Message)
	walk = func(path string, desc protoreflect.MessageDescriptor, find func(*agentv1.Deployment) protoreflect.Message) {
		for i := range desc.Fields().Len() {
			f := desc.Fields().Get(i)
			path := strings.TrimPrefix(path+"."+string(f.Name()), ".")
			require.False(t, seen[path], path)
			seen[path] = true
			delete(unused, path)
			if _, whole := notApplicable[path]; whole && nested(f) {
				continue
			}
			if nested(f) {
				walk(path, f.Message(), func(d *agentv1.Deployment) protoreflect.Message {
					m := find(d)
					if f.IsList() {
						return m.Mutable(f).List().Get(0).Message()
					}
					return m.Mutable(f).Message()
				})
				continue
			}
			t.Run(path, func(t *testing.T) {
				a := everything()
				c := special[path]
				if slices.Contains([]string{"image", "command", "args", "resources"}, strings.Split(path+"..", ".")[1]) {
					withoutRoles(a.Deployment.Spec)
				}
				if c.base != nil {
					c.base(a.Deployment.Spec)
				}
				before := dump(t, render(t, config(), a))
				a.Deployment = proto.CloneOf(a.Deployment)
				if c.change != nil {
					c.change(a.Deployment.Spec)
				} else {
					change(t, find(a.Deployment), f)
				}
				a.Secrets = map[string]string{"API_KEY": "correct-horse", "OTHER_KEY": "correct-horse"}
				a.PullSecrets = map[string]string{"registry": dockerConfig, "api-key": dockerConfig}
				o, err := Render(config(), a)
				var rej *runtime.Rejection
				reached := errors.As(err, &rej)
				if reached {
					require.Contains(t, rej.Message, f.JSONName(), "a refusal must name this field")
				} else {
					require.NoError(t, err)
					reached = string(dump(t, o)) != string(before)
				}
				_, named := notApplicable[path]
				require.NotEqual(t, named, reached, "it reaches Kubernetes: %t, notApplicable names it: %t", reached, named)
			})
		}
	}
	a := everything()
	walk("", a.Deployment.ProtoReflect().Descriptor(), func(d *agentv1.Deployment) protoreflect.Message { return d.ProtoReflect() })
	require.Empty(t, unused, "notApplicable has fields that do not exist, or whose own fields are tested")
}

// If a new version differs from the previous one only in these fields, the control plane keeps
// instances. If pods had any of them, these pods would be wrong, and would be replaced when their
// template is rendered again.
func TestRollout_PolicyIsInNoPod(t *testing.T) {
	before := podOf(t, render(t, config(), everything()))
	fields := (&windlassv1.DeploymentSpec{}).ProtoReflect().Descriptor().Fields()
	for _, name := range []protoreflect.Name{"regions", "min_ready", "progress_deadline"} {
		a := everything()
		change(t, a.Deployment.Spec.ProtoReflect(), fields.ByName(name))
		require.Equal(t, before, podOf(t, render(t, config(), a)), name)
	}
	a := everything()
	a.Deployment.Spec.Routing = &windlassv1.RoutingPolicy{Retries: new(int32(7))}
	require.Equal(t, before, podOf(t, render(t, config(), a)), "routing")
}

// nested reports whether a field is a message whose fields are tested one by one.
func nested(f protoreflect.FieldDescriptor) bool {
	return f.Message() != nil && !f.IsMap() && f.Message().FullName() != "google.protobuf.Duration"
}

// change adds one to the value of a field.
func change(t *testing.T, m protoreflect.Message, f protoreflect.FieldDescriptor) {
	t.Helper()
	switch {
	case f.IsMap():
		m.Mutable(f).Map().Set(protoreflect.ValueOfString("added").MapKey(), protoreflect.ValueOfString("one"))
	case f.IsList():
		m.Mutable(f).List().Append(protoreflect.ValueOfString("added"))
	case f.Message() != nil:
		d := m.Mutable(f).Message()
		seconds := d.Descriptor().Fields().ByName("seconds")
		d.Set(seconds, protoreflect.ValueOfInt64(d.Get(seconds).Int()+int64(time.Minute/time.Second)))
	default:
		m.Set(f, another(t, m.Get(f), f))
	}
}

func another(t *testing.T, v protoreflect.Value, f protoreflect.FieldDescriptor) protoreflect.Value {
	t.Helper()
	switch f.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(v.String() + "x")
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes(append(slices.Clone(v.Bytes()), 1))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(!v.Bool())
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(v.Int()) + 1)
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(v.Int() + 1)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(v.Enum() + 1)
	default:
		t.Fatalf("change cannot change a field of kind %s: add the kind", f.Kind())
		return protoreflect.Value{}
	}
}

func TestPullSecret_NameReachesThePod(t *testing.T) {
	a := everything()
	before := podOf(t, render(t, config(), a))
	a.Deployment.Spec.Secrets[1].Secret = "other-registry"
	a.PullSecrets = map[string]string{"other-registry": dockerConfig}
	require.NotEqual(t, before.Spec.ImagePullSecrets, podOf(t, render(t, config(), a)).Spec.ImagePullSecrets)
}
