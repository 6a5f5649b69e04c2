package cli

import (
	"errors"
	"fmt"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// fileFault is an error of the control plane, with the field of the file that caused it.
type fileFault struct {
	refusal error
	// place is the field with its line in the file.
	place *fieldError
	file  string
}

func (f *fileFault) Error() string { return fmt.Sprintf("%s: %s", f.file, f.place.Error()) }
func (f *fileFault) Unwrap() error { return f.refusal }

// explainError returns the error of a call that sent the file. If the call refused a field of the file, the error
// names the field as the file does, and its line.
func (f *appFile) explainError(err error) error {
	var refusal *connect.Error
	detail := rpc.DetailOf(err)
	if !errors.As(err, &refusal) || detail.GetField() == "" {
		return err
	}
	if _, ok := filePath(detail.GetField()); !ok {
		return err
	}
	return &fileFault{refusal: err, place: f.fieldInFile(detail.GetField(), refusal.Message()), file: f.path}
}

// fieldInFile returns a refusal's message, with the name and line that the refused field has in the file.
func (f *appFile) fieldInFile(field, message string) *fieldError {
	path, ok := filePath(field)
	if !ok {
		path = field
	}
	place := &fieldError{path: path, text: strings.TrimPrefix(message, field+": ")}
	if ok && f != nil && f.document != nil {
		_ = f.document.addLine(place) // this sets place.line
	}
	return place
}

// filePath converts the path of a field of a request into the path in an app's file:
// "spec.resources.cpuMillicores" is "resources.cpuMillicores". It converts proto names to the names of the
// file's schema. ok reports whether the file has such a field.
func filePath(field string) (path string, ok bool) {
	if field == "app" {
		return field, true
	}
	root, rest, _ := strings.Cut(field, ".")
	var schema protoreflect.MessageDescriptor
	switch root {
	case "spec":
		schema, root = (&windlassv1.DeploymentSpec{}).ProtoReflect().Descriptor(), ""
	case "rollout":
		schema = (&windlassv1.RolloutPolicy{}).ProtoReflect().Descriptor()
	case "freeze":
		schema = (&windlassv1.FileFreeze{}).ProtoReflect().Descriptor()
	case "scaling":
		schema = (&windlassv1.ScalingPolicy{}).ProtoReflect().Descriptor()
	default:
		return "", false
	}
	for path = root; rest != ""; {
		var part string
		part, rest = firstPart(rest)
		name, index, _ := strings.Cut(part, "[")
		if index != "" {
			index = "[" + index
		}
		if schema == nil {
			// The name is a key of a mapping of texts.
			path = joinPath(path, name) + index
			continue
		}
		known := schema.Fields().ByJSONName(name)
		if known == nil {
			known = schema.Fields().ByName(protoreflect.Name(name))
		}
		if known == nil {
			return "", false
		}
		path = joinPath(path, known.JSONName()) + index
		schema = known.Message()
		if known.IsMap() || schema != nil && schema.FullName() == structName {
			schema = nil
		}
	}
	return path, true
}

// firstPart splits a path after its first name and the indexes and keys that follow the name. A quoted key
// may contain dots.
func firstPart(path string) (first, rest string) {
	quoted := false
	for i := 0; i < len(path); i++ {
		switch c := path[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case c == '.' && !quoted:
			return path[:i], path[i+1:]
		}
	}
	return path, ""
}
