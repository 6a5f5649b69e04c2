// Package appspec checks the specs and policies of apps, fills in their defaults, and compares
// specs. It is pure: what depends on regions, secrets or other apps that exist is checked by the API.
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

// WithDefaults returns a copy of the spec with everything filled in that it leaves
// out, but for replicas and regions, which depend on more than the spec.
func WithDefaults(in *windlassv1.DeploymentSpec) *windlassv1.DeploymentSpec {
	s := proto.CloneOf(in)
	s.InheritedEnv, s.PinnedOverrides = nil, nil
	return fillDefaults(s)
}

// fillDefaults fills in what the spec leaves out.
func fillDefaults(s *windlassv1.DeploymentSpec) *windlassv1.DeploymentSpec {
	if s.Resources == nil {
		s.Resources = &windlassv1.Resources{}
	}
	s.Resources.CpuMillicores = cmp.Or(s.Resources.CpuMillicores, defaultCPUMillicores)
	s.Resources.MemoryMib = cmp.Or(s.Resources.MemoryMib, defaultMemoryMiB)
	if s.Resources.Gpu.GetCount() == 0 {
		s.Resources.Gpu = nil
	}
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
	s.ProgressDeadline = orDuration(s.ProgressDeadline, defaultDeadline)
	return s
}

func orDuration(value, otherwise *durationpb.Duration) *durationpb.Duration {
	if value == nil {
		return proto.CloneOf(otherwise)
	}
	return value
}

// InheritEnv puts the preset's variables under the environment's, and those under the app's own, and
// notes which are the environment's. A variable that carries a secret is none of these.
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

// OwnEnv are the variables that InheritEnv was given as the app's own.
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

// concern is whom a field of the spec is for.
type concern int

const (
	// ofInstances: an instance is made by it.
	ofInstances concern = iota
	// ofRollouts: it is part of the version, and no instance sees it. A version that differs
	// from the live one in fields like it alone goes on with the instances that there are.
	ofRollouts
	// ofPeople: it is not part of the version, or says in other words what another field says.
	ofPeople
)

// concerns of all fields. Agents count on it: what is ofRollouts is in nothing that they make
// an instance of.
var concerns = map[protoreflect.Name]concern{
	"image": ofInstances, "command": ofInstances, "args": ofInstances, "resources": ofInstances, "roles": ofInstances,
	"env": ofInstances, "secrets": ofInstances, "ports": ofInstances, "health_check": ofInstances,
	"termination_grace": ofInstances, "drain_delay": ofInstances, "model_cache": ofInstances, "kubernetes": ofInstances,
	// What overrides came to is what runs, however they say it.
	"pinned_overrides": ofInstances, "overrides": ofPeople,

	"regions": ofRollouts, "progress_deadline": ofRollouts, "min_ready": ofRollouts, "routing": ofRollouts,

	// What serve came to is in the other fields, and in generated.
	"generated_by": ofRollouts, "generated": ofRollouts, "serve": ofPeople,

	"replicas": ofPeople, "inherited_env": ofPeople,
	"version_label": ofPeople, "message": ofPeople, "source_commit": ofPeople,
}

// Hash tells specs apart by what runs. It is compared between specs that were
// hashed by the same program and is no format.
func Hash(spec *windlassv1.DeploymentSpec) ([]byte, error) { return hashOf(spec, ofRollouts) }

// MadeAlike reports whether instances of the one are instances of the other: a spec made of the
// fields that instances see is the same.
func MadeAlike(a, b *windlassv1.DeploymentSpec) (bool, error) {
	left, err := hashOf(a, ofInstances)
	if err != nil {
		return false, err
	}
	right, err := hashOf(b, ofInstances)
	return string(left) == string(right), err
}

// hashOf covers the fields that are of concern up to the last.
func hashOf(spec *windlassv1.DeploymentSpec, last concern) ([]byte, error) {
	s := proto.CloneOf(spec)
	s.PinnedOverrides = override.Versioned(s)
	slices.Sort(s.Regions)
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

// Same reports whether the two run the same.
func Same(a, b *windlassv1.DeploymentSpec) (bool, error) {
	a, b = withoutVersions(a, b)
	left, err := Hash(a)
	if err != nil {
		return false, err
	}
	right, err := Hash(b)
	return string(left) == string(right), err
}
