package appspec

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// A new field must be added to concerns, because a missing field would count as ofInstances.
func TestFields_EachHasAConcern(t *testing.T) {
	fields := (*windlassv1.DeploymentSpec)(nil).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		require.Contains(t, concerns, fields.Get(i).Name(), "add the field to concerns")
	}
	require.Len(t, concerns, fields.Len(), "concerns names a field that does not exist")
}

func TestInstances_DependOnlyOnWhatTheySee(t *testing.T) {
	spec := &windlassv1.DeploymentSpec{
		Image: "registry.test/echo:v1", Args: []string{"a"}, Regions: []string{"eu", "us"}, Replicas: new(int32(2)),
		Secrets: []*windlassv1.SecretReference{{EnvName: "TOKEN", Secret: "token", Version: 1}},
	}
	for name, c := range map[string]struct {
		edit        func(*windlassv1.DeploymentSpec)
		same, alike bool
	}{
		"routing":            {func(s *windlassv1.DeploymentSpec) { s.Routing = &windlassv1.RoutingPolicy{Retries: new(int32(0))} }, false, true},
		"regions":            {func(s *windlassv1.DeploymentSpec) { s.Regions = []string{"us"} }, false, true},
		"order of regions":   {func(s *windlassv1.DeploymentSpec) { s.Regions = []string{"us", "eu"} }, true, true},
		"min_ready":          {func(s *windlassv1.DeploymentSpec) { s.MinReady = 1 }, false, true},
		"progress_deadline":  {func(s *windlassv1.DeploymentSpec) { s.ProgressDeadline = durationpb.New(1) }, false, true},
		"replicas":           {func(s *windlassv1.DeploymentSpec) { s.Replicas = new(int32(3)) }, true, true},
		"message":            {func(s *windlassv1.DeploymentSpec) { s.Message = "why" }, true, true},
		"args":               {func(s *windlassv1.DeploymentSpec) { s.Args = []string{"b"} }, false, false},
		"image":              {func(s *windlassv1.DeploymentSpec) { s.Image = "registry.test/echo:v2" }, false, false},
		"health_check":       {func(s *windlassv1.DeploymentSpec) { s.HealthCheck = &windlassv1.HealthCheck{Path: "/up"} }, false, false},
		"a secret's version": {func(s *windlassv1.DeploymentSpec) { s.Secrets[0].Version = 2 }, false, false},
		"pinned_overrides": {func(s *windlassv1.DeploymentSpec) {
			s.PinnedOverrides = []*windlassv1.PinnedOverride{{Region: "eu", Values: &windlassv1.Override{Args: []string{"b"}}}}
		}, false, false},
		"replicas by override": {func(s *windlassv1.DeploymentSpec) {
			s.PinnedOverrides = []*windlassv1.PinnedOverride{{Region: "eu", Values: &windlassv1.Override{Replicas: new(int32(5))}}}
		}, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			other := proto.CloneOf(spec)
			c.edit(other)
			before := proto.CloneOf(other)
			same, err := Same(spec, other)
			require.NoError(t, err)
			require.Equal(t, c.same, same, "the same version")
			alike, err := MadeAlike(spec, other)
			require.NoError(t, err)
			require.Equal(t, c.alike, alike, "the same instances")
			require.True(t, proto.Equal(before, other))
		})
	}
}
