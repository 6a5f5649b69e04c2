package api_test

import (
	"regexp"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// protoName matches a name of several words in the form of protos, such as min_ready.
var protoName = regexp.MustCompile(`\b[a-z]+(_[a-z]+)+\b`)

// namesFieldsAsFilesDo requires that text does not use a proto's name for a field of an app's file, such as min_ready
// for minReady.
func namesFieldsAsFilesDo(t *testing.T, text string) {
	t.Helper()
	for _, word := range protoName.FindAllString(text, -1) {
		require.NotContains(t, fileFields(), word, text)
	}
}

// fileFields returns the proto names of all fields that a file may have.
var fileFields = sync.OnceValue(func() map[string]bool {
	names := map[string]bool{}
	seen := map[protoreflect.FullName]bool{}
	var add func(m protoreflect.MessageDescriptor)
	add = func(m protoreflect.MessageDescriptor) {
		if seen[m.FullName()] {
			return
		}
		seen[m.FullName()] = true
		for i := range m.Fields().Len() {
			f := m.Fields().Get(i)
			names[string(f.Name())] = true
			if f.Message() != nil {
				add(f.Message())
			}
		}
	}
	for _, m := range []proto.Message{&windlassv1.DeploymentSpec{}, &windlassv1.RolloutPolicy{}, &windlassv1.FileFreeze{}, &windlassv1.ScalingPolicy{}} {
		add(m.ProtoReflect().Descriptor())
	}
	return names
})
