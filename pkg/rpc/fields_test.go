package rpc

import (
	"strings"
	"testing"

	"buf.build/go/protovalidate"
	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

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
	} {
		t.Run(name, func(t *testing.T) {
			err := protovalidate.Validate(c.of)
			var broken *protovalidate.ValidationError
			require.ErrorAs(t, err, &broken)
			coded := validationError(broken)
			require.Contains(t, coded.Message(), c.want)
			require.Equal(t, c.field, DetailOf(coded).GetField())
			require.NotContains(t, coded.Message(), "^", "no regular expression")
		})
	}
}
