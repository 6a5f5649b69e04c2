// Package appspec checks the specs and policies of apps, fills in their defaults, and compares specs. It does no I/O:
// package api checks rules that depend on existing regions, secrets or other apps.
package appspec

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model/override"
	"github.com/windlass-run/windlass/pkg/healthcheck"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Defaults that spec.proto states.
const (
	DefaultReplicas      = 2
	defaultCPUMillicores = 500
	defaultMemoryMiB     = 512
	defaultPort          = "http"
	defaultUnhealthy     = 3
	defaultHealthy       = 2
)

var (
	defaultInterval      = durationpb.New(10 * time.Second)
	defaultTimeout       = durationpb.New(healthcheck.DefaultTimeout)
	defaultStartupBudget = durationpb.New(30 * time.Minute)
	defaultGrace         = durationpb.New(30 * time.Second)
	defaultDeadline      = durationpb.New(10 * time.Minute)
)

// maxDeadline is the longest progress deadline in the schema.
const maxDeadline = 24 * time.Hour

// WithDefaults returns a copy of the spec with defaults for all missing fields, except for replicas and
// regions, which depend on more than the spec.
func WithDefaults(in *windlassv1.DeploymentSpec) *windlassv1.DeploymentSpec {
	s := proto.CloneOf(in)
	s.InheritedEnv, s.PinnedOverrides = nil, nil
	return fillDefaults(s)
}

// fillDefaults sets the defaults of missing fields.
func fillDefaults(s *windlassv1.DeploymentSpec) *windlassv1.DeploymentSpec {
	if s.Resources == nil {
		s.Resources = &windlassv1.Resources{}
	}
	if s.Model == nil { // a model uses the resources of its servers
		s.Resources.CpuMillicores = cmp.Or(s.Resources.CpuMillicores, defaultCPUMillicores)
		s.Resources.MemoryMib = cmp.Or(s.Resources.MemoryMib, defaultMemoryMiB)
	}
	if s.Resources.Gpu.GetCount() == 0 {
		s.Resources.Gpu = nil
	}
	fillRoles(s)
	if len(s.Ports) == 0 {
		s.Ports = []*windlassv1.Port{{Name: defaultPort}}
	}
	if s.HealthCheck == nil {
		s.HealthCheck = &windlassv1.HealthCheck{}
	}
	h := s.HealthCheck
	h.Path = cmp.Or(h.Path, healthcheck.DefaultPath)
	h.Port = cmp.Or(h.Port, s.Ports[0].GetName())
	h.Method = cmp.Or(h.Method, "GET")
	h.UnhealthyThreshold = cmp.Or(h.UnhealthyThreshold, defaultUnhealthy)
	h.HealthyThreshold = cmp.Or(h.HealthyThreshold, defaultHealthy)
	h.Interval = orDuration(h.Interval, defaultInterval)
	h.Timeout = orDuration(h.Timeout, defaultTimeout)
	s.ProgressDeadline = orDuration(s.ProgressDeadline, deadlineFor(h.StartupBudget))
	h.StartupBudget = orDuration(h.StartupBudget, defaultStartupBudget)
	if c := s.ModelCache; c.GetClaim() != nil {
		c.Retention = cmp.Or(c.Retention, windlassv1.ModelCache_RETENTION_DELETE)
	}
	if k := s.Kubernetes; proto.Size(k) == 0 {
		s.Kubernetes = nil
	} else {
		k.ZoneSpread = cmp.Or(k.ZoneSpread, windlassv1.KubernetesOptions_ZONE_SPREAD_PREFERRED)
	}
	if proto.Size(s.Routing) == 0 {
		s.Routing = nil
	}
	s.TerminationGrace = orDuration(s.TerminationGrace, defaultGrace)
	return s
}

// deadlineFor returns the progress deadline of a spec that sets none. budget is the startup budget that the file or a
// preset sets, nil for none. The deadline is longer than the budget, so that a rollout does not fail while an instance
// may still be starting. The default budget does not count: it says nothing about the app.
func deadlineFor(budget *durationpb.Duration) *durationpb.Duration {
	if budget.AsDuration() <= defaultDeadline.AsDuration() {
		return defaultDeadline
	}
	return durationpb.New(min(budget.AsDuration()+defaultDeadline.AsDuration(), maxDeadline))
}

func orDuration(value, otherwise *durationpb.Duration) *durationpb.Duration {
	if value == nil {
		return proto.CloneOf(otherwise)
	}
	return value
}

// InheritEnv sets s.Env from the app's own variables, then from the environment's, and then from the preset's. It
// never replaces a variable that is already set or that a secret sets. s.InheritedEnv lists the variables from the
// environment.
func InheritEnv(s *windlassv1.DeploymentSpec, environment, own map[string]string) {
	s.Env, s.InheritedEnv = map[string]string{}, nil
	maps.Copy(s.Env, own)
	secret := func(name string) bool {
		return slices.ContainsFunc(s.GetSecrets(), func(r *windlassv1.SecretReference) bool { return r.GetEnvName() == name })
	}
	for _, name := range slices.Sorted(maps.Keys(environment)) {
		if _, taken := own[name]; !taken && !secret(name) {
			s.Env[name] = environment[name]
			s.InheritedEnv = append(s.InheritedEnv, name)
		}
	}
	for name, value := range s.GetGenerated().GetEnv() {
		if _, taken := s.Env[name]; !taken && !secret(name) {
			s.Env[name] = value
		}
	}
}

// OwnEnv returns the app's own variables, which InheritEnv got as own.
func OwnEnv(s *windlassv1.DeploymentSpec) map[string]string {
	own := maps.Clone(s.GetEnv())
	for _, name := range s.GetInheritedEnv() {
		delete(own, name)
	}
	for name := range s.GetGenerated().GetEnv() {
		delete(own, name)
	}
	return own
}

// concern is what a change of a spec's field affects.
type concern int

const (
	// ofInstances means that the field is part of how an instance is made.
	ofInstances concern = iota
	// ofRollouts means that the field is part of the version, but not of its instances. A version that
	// differs from the live one only in such fields keeps the running instances.
	ofRollouts
	// ofPeople means that the field is not part of the version, or repeats what another field says.
	ofPeople
)

// concerns has all fields of a spec. Agents must not use a field with ofRollouts to make an instance, because a
// change of the field replaces no instance.
var concerns = map[protoreflect.Name]concern{
	"image": ofInstances, "command": ofInstances, "args": ofInstances, "resources": ofInstances, "roles": ofInstances,
	"layout": ofInstances,
	"env":    ofInstances, "secrets": ofInstances, "ports": ofInstances, "health_check": ofInstances,
	"termination_grace": ofInstances, "drain_delay": ofInstances, "model_cache": ofInstances, "kubernetes": ofInstances,
	// Regions run the pinned overrides. Different overrides can have the same pinned overrides.
	"pinned_overrides": ofInstances, "overrides": ofPeople,

	"regions": ofRollouts, "progress_deadline": ofRollouts, "min_ready": ofRollouts, "routing": ofRollouts,
	// Agents use the field models to place models on servers, not to make instances.
	"model": ofInstances, "models": ofRollouts,
	// Agents use the field update to order replacements, not to make instances.
	"update": ofRollouts,
	// Agents use the field gang to decide when instances start, not to make them.
	"gang": ofRollouts,
	// Agents use the field topology to choose nodes when a gang starts.
	"topology": ofRollouts,
	// Gateways use the field pairing to send requests, and instances do not see it.
	"pairing": ofRollouts,

	// The result of serve is in other fields and in generated.
	"generated_by": ofRollouts, "generated": ofRollouts, "serve": ofPeople,

	"replicas": ofPeople, "inherited_env": ofPeople,
	"version_label": ofPeople, "message": ofPeople, "source_commit": ofPeople,
}

// Hash returns a hash of all fields that are part of a version. Compare it only with hashes of the same build,
// because the hash is not stable across builds.
func Hash(spec *windlassv1.DeploymentSpec) ([]byte, error) { return hashOf(spec, ofRollouts) }

// MadeAlike reports whether an instance of a can serve as an instance of b, because the fields that instances see
// are the same, and the same roles change with the image of the spec.
func MadeAlike(a, b *windlassv1.DeploymentSpec) (bool, error) {
	left, err := hashOf(a, ofInstances)
	if err != nil {
		return false, err
	}
	right, err := hashOf(b, ofInstances)
	return string(left) == string(right) && slices.Equal(model.RolesOfImage(a), model.RolesOfImage(b)), err
}

// hashOf returns a hash of the fields with a concern up to last.
func hashOf(spec *windlassv1.DeploymentSpec, last concern) ([]byte, error) {
	s := proto.CloneOf(spec)
	s.PinnedOverrides = override.Versioned(s)
	slices.Sort(s.Regions)
	if model.IsPooled(s) {
		for _, r := range s.GetRoles() {
			r.Instances = 0 // the number of instances of a pool is not part of the version
		}
	}
	if last == ofInstances {
		for _, r := range s.GetRoles() {
			r.Together = false // together says what a version changes, but instances do not see it; see model.RolesOfImage
		}
	}
	m := s.ProtoReflect()
	m.Range(func(f protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		if concerns[f.Name()] > last {
			m.Clear(f)
		}
		return true
	})
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("hash spec: %w", err)
	}
	sum := sha256.Sum256(b)
	return sum[:], nil
}

// Same reports whether the two specs make the same version. The version of a secret counts only if both specs name
// one.
func Same(a, b *windlassv1.DeploymentSpec) (bool, error) {
	a, b = withoutVersions(a, b)
	left, err := Hash(a)
	if err != nil {
		return false, err
	}
	right, err := Hash(b)
	return string(left) == string(right), err
}
