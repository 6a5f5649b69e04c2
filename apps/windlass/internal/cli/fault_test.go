package cli

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// fieldPaths returns the paths of a message's fields in a file, by their paths in the request.
func fieldPaths(request, file string, m protoreflect.MessageDescriptor, within map[protoreflect.FullName]bool) map[string]string {
	out := map[string]string{}
	if within[m.FullName()] {
		return out
	}
	within[m.FullName()] = true
	defer delete(within, m.FullName())
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		index := ""
		switch {
		case f.IsMap():
			index = `["a_b.c[0]"]`
		case f.IsList():
			index = "[3]"
		}
		from, to := strings.TrimPrefix(request+"."+string(f.Name()), "."), strings.TrimPrefix(file+"."+f.JSONName(), ".")
		out[from], out[from+index] = to, to+index
		if f.Message() != nil && !f.IsMap() && f.Message().FullName() != durationName {
			maps.Copy(out, fieldPaths(from+index, to+index, f.Message(), within))
		}
	}
	return out
}

func TestExplain_FieldsHaveTheirNamesInTheFile(t *testing.T) {
	all := map[string]string{"app": "app"}
	for _, part := range []struct {
		request, file string
		of            proto.Message
	}{{"spec", "", &windlassv1.DeploymentSpec{}}, {"rollout", "rollout", &windlassv1.RolloutPolicy{}}, {"freeze", "freeze", &windlassv1.FileFreeze{}}} {
		maps.Copy(all, fieldPaths(part.request, part.file, part.of.ProtoReflect().Descriptor(), map[protoreflect.FullName]bool{}))
	}
	require.Greater(t, len(all), 150)
	file := &appFile{path: "app.yaml"}
	for request, want := range all {
		// This control plane uses the names of the file, and an older one uses proto names.
		coded := rpc.Error(connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, request, "it is wrong")
		named := rpc.DetailOf(coded).GetField()
		for _, field := range []string{request, named} {
			path, ok := filePath(field)
			require.True(t, ok, field)
			require.Equal(t, want, path)
		}
		require.Equal(t, "app.yaml: "+want+": it is wrong\nSee `windlass explain VALIDATION`.", Explain(file.explainError(coded)))
		repeats := rpc.Error(connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, named, named+": it is wrong")
		require.Equal(t, "app.yaml: "+want+": it is wrong\nSee `windlass explain VALIDATION`.", Explain(file.explainError(repeats)), "the message may begin with the field")
	}
	for _, field := range []string{"", "mutation.idempotencyKey", "spec.unheardOf", "replicas"} {
		_, ok := filePath(field)
		require.False(t, ok, field)
	}
}

func TestExplain_FieldsHaveTheirLineInTheFile(t *testing.T) {
	file, err := parseAppFile([]byte("app: a\nresources:\n  cpuMillicores: 5\nrollout:\n  waitForCapacity: 3s\n  steps:\n  - weight: 3\n  autoRollback: true\n"))
	require.NoError(t, err)
	file.path = "app.yaml"
	for field, want := range map[string]string{
		"app":                          "line 1: app",
		"spec.resources.cpuMillicores": "line 3: resources.cpuMillicores",
		"spec.resources.memoryMib":     "line 3: resources.memoryMib",
		"rollout.waitForCapacity":      "line 5: rollout.waitForCapacity",
		"rollout.steps[0].weight":      "line 7: rollout.steps[0].weight",
		"rollout.autoRollback.enabled": "line 8: rollout.autoRollback.enabled",
		"spec.command":                 "command",
	} {
		refusal := rpc.ErrorWith(connect.CodeInvalidArgument, &windlassv1.ErrorDetail{Field: field, Fix: "Mend it."}, "it is wrong")
		require.Equal(t, fmt.Sprintf("app.yaml: %s: it is wrong\nMend it.", want), Explain(file.explainError(refusal)))
		require.Equal(t, connect.CodeInvalidArgument, connect.CodeOf(file.explainError(refusal)))
	}
	whole := rpc.Error(connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, "spec", "spec: it runs nothing")
	require.Equal(t, "app.yaml: it runs nothing\nSee `windlass explain VALIDATION`.", Explain(file.explainError(whole)))
	other := rpc.Error(connect.CodeUnauthenticated, windlassv1.ErrorReason_ERROR_REASON_UNAUTHENTICATED, "", "no key")
	require.Equal(t, error(other), file.explainError(other))
}
