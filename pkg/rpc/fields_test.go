package rpc

import (
	"strings"
	"testing"

	validate "buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"buf.build/go/protovalidate"
	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestField_HasTheNameOfFiles(t *testing.T) {
	for path, want := range map[string]string{
		"": "", "spec": "spec", "rollout.wait_for_capacity": "rollout.waitForCapacity",
		"spec.health_check.unhealthy_threshold": "spec.healthCheck.unhealthyThreshold",
		`spec.env["A_B"]`:                       `spec.env["A_B"]`,
		`spec.pod_labels["a\"_b"].max_surge`:    `spec.podLabels["a\"_b"].maxSurge`,
		"rollout.waves[0].bake_time":            "rollout.waves[0].bakeTime",
	} {
		require.Equal(t, want, jsonPath(path))
		require.Equal(t, want, DetailOf(Error(connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, path, "m")).GetField())
	}
}

func TestValidation_ExplainsPatterns(t *testing.T) {
	for name, c := range map[string]struct {
		of          proto.Message
		field, want string
	}{
		"a long name": {
			&windlassv1.CreateAppRequest{Name: strings.Repeat("a", 64)},
			"name", "name: it has 64 characters: use at most 63 lower-case letters",
		},
		"a name": {&windlassv1.CreateAppRequest{Name: "Chat"}, "name", `name: "Chat" is not valid: use at most 63 lower-case letters`},
		"a variable": {
			&windlassv1.SetEnvironmentRequest{App: "chat", Set: map[string]string{"BAD-NAME": "1"}},
			`set["BAD-NAME"]`, `"BAD-NAME" is not valid: a variable's name has letters, digits and underscores`,
		},
		"a day's name": {
			&windlassv1.SetFreezeRequest{Name: "a", Reason: "b", Weekly: []*windlassv1.WeeklyWindow{{Start: "Friday 16:00", End: "Mon 08:00"}}},
			"weekly[0].start", "as in Fri 16:00",
		},
		"an hour": {
			&windlassv1.SetFreezeRequest{Name: "a", Reason: "b", Weekly: []*windlassv1.WeeklyWindow{{Start: "Fri 16:00", End: "Sat 24:00"}}},
			"weekly[0].end", "a time from 00:00 to 23:59",
		},
		"a share": {
			&windlassv1.DeployRequest{App: "chat", Spec: &windlassv1.DeploymentSpec{Regions: []string{"a"}, Command: []string{"a"}}, Rollout: &windlassv1.RolloutPolicy{MaxSurge: "half"}},
			"rollout.maxSurge", `rollout.maxSurge: "half" is not valid: use a number or a share, as in 2 or 25%`,
		},
		"a step": {
			&windlassv1.DeployRequest{App: "chat", Spec: &windlassv1.DeploymentSpec{Regions: []string{"a"}, Command: []string{"a"}}, Scaling: &windlassv1.ScalingPolicy{Up: &windlassv1.ScalingPace{Step: "fast"}}},
			"scaling.up.step", `scaling.up.step: "fast" is not valid: use a number or a share, as in 2 or 25%`,
		},
		"a path": {
			&windlassv1.DeployRequest{App: "chat", Spec: &windlassv1.DeploymentSpec{Regions: []string{"a"}, Command: []string{"a"}, HealthCheck: &windlassv1.HealthCheck{Path: "health"}}},
			"spec.healthCheck.path", `spec.healthCheck.path: "health" is not valid: begin with /`,
		},
		"a long path": {
			&windlassv1.DeployRequest{App: "chat", Spec: &windlassv1.DeploymentSpec{Regions: []string{"a"}, Command: []string{"a"}, HealthCheck: &windlassv1.HealthCheck{Path: strings.Repeat("h", 100)}}},
			"spec.healthCheck.path", `hhh" is not valid: begin with /`,
		},
		"a region twice": {
			&windlassv1.DeployRequest{App: "chat", Spec: &windlassv1.DeploymentSpec{Regions: []string{"eu", "us", "eu"}, Command: []string{"a"}}},
			"spec.regions", `spec.regions: eu is there twice, as items 1 and 3: keep one of them`,
		},
		"a condition twice": {
			&windlassv1.DeployRequest{App: "chat", Spec: &windlassv1.DeploymentSpec{Regions: []string{"a"}, Command: []string{"a"}}, Rollout: &windlassv1.RolloutPolicy{AutoRollback: &windlassv1.AutoRollback{Conditions: []windlassv1.AutoRollback_Condition{1, 1}}}},
			"rollout.autoRollback.conditions", `rollout.autoRollback.conditions: crash is there twice, as items 1 and 2`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			err := protovalidate.Validate(c.of)
			var broken *protovalidate.ValidationError
			require.ErrorAs(t, err, &broken)
			coded := validationError(broken)
			require.Contains(t, coded.Message(), c.want)
			require.Equal(t, c.field, DetailOf(coded).GetField())
			require.NotContains(t, coded.Message(), "^", "no regular expression")
			require.NotContains(t, coded.Message(), "unique items")
		})
	}
}

// Each pattern of the schema has an explanation, and each explanation is of a pattern of the schema.
func TestPatterns_AllHaveWords(t *testing.T) {
	used := map[string]bool{}
	var checkRules func(name protoreflect.FullName, r *validate.FieldRules)
	checkRules = func(name protoreflect.FullName, r *validate.FieldRules) {
		if r == nil {
			return
		}
		if p := r.GetString().GetPattern(); p != "" {
			used[p] = true
			require.NotEmpty(t, patterns[p].words, "%s has a pattern without words: %s", name, p)
		}
		checkRules(name, r.GetRepeated().GetItems())
		checkRules(name, r.GetMap().GetKeys())
		checkRules(name, r.GetMap().GetValues())
	}
	var checkMessages func(all protoreflect.MessageDescriptors)
	checkMessages = func(all protoreflect.MessageDescriptors) {
		for i := range all.Len() {
			m := all.Get(i)
			for j := range m.Fields().Len() {
				f := m.Fields().Get(j)
				r, err := protovalidate.ResolveFieldRules(f)
				require.NoError(t, err)
				checkRules(f.FullName(), r)
			}
			checkMessages(m.Messages())
		}
	}
	protoregistry.GlobalFiles.RangeFilesByPackage("windlass.v1", func(f protoreflect.FileDescriptor) bool {
		checkMessages(f.Messages())
		return true
	})
	require.NotEmpty(t, used)
	for p := range patterns {
		require.True(t, used[p], "no field has the pattern %s", p)
	}
}
