package main

import (
	"fmt"
	"strconv"
	"strings"

	validate "buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/windlass-run/windlass/apps/windlass/internal/cli"
	"github.com/windlass-run/windlass/pkg/choices"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	durationName = "google.protobuf.Duration"
	structName   = "google.protobuf.Struct"
	specName     = "windlass.v1.DeploymentSpec"
	policyName   = "windlass.v1.RolloutPolicy"
	freezeName   = "windlass.v1.FileFreeze"
	scalingName  = "windlass.v1.ScalingPolicy"
)

// top are the fields of an app's file that do not belong to the deployment.
var top = []struct{ name, kind, text string }{
	{"app", "text", "Name of the app. Required."},
	{"project", "text", "Name of the project. Default: the context's, else default."},
	{"environment", "text", "Name of the environment. Default: the context's, else production."},
	{"rollout", "[RolloutPolicy](#rolloutpolicy)", "How the app moves to a new version."},
	{"freeze", "[FileFreeze](#filefreeze)", "A freeze of the app, as long as the file that is deployed has it."},
	{"scaling", "[ScalingPolicy](#scalingpolicy)", "How the app's replicas follow the load."},
}

// appFileMessages returns the messages of the app file: the spec, the policies, the freeze and their fields.
func appFileMessages() []protoreflect.MessageDescriptor {
	return messagesIn(&windlassv1.DeploymentSpec{}, &windlassv1.RolloutPolicy{}, &windlassv1.FileFreeze{}, &windlassv1.ScalingPolicy{})
}

// messagesIn returns the messages and the messages of their fields, each once.
func messagesIn(all ...proto.Message) []protoreflect.MessageDescriptor {
	var out []protoreflect.MessageDescriptor
	seen := map[protoreflect.FullName]bool{}
	var add func(m protoreflect.MessageDescriptor)
	add = func(m protoreflect.MessageDescriptor) {
		if seen[m.FullName()] || m.FullName() == durationName || m.FullName() == structName {
			return
		}
		seen[m.FullName()] = true
		out = append(out, m)
		for i := range m.Fields().Len() {
			if f := m.Fields().Get(i); f.Message() != nil && !f.IsMap() && !cli.IsReadOnly(f.FullName()) {
				add(f.Message())
			}
		}
	}
	for _, m := range all {
		add(m.ProtoReflect().Descriptor())
	}
	return out
}

func appFile(s *source) (string, error) {
	var out strings.Builder
	out.WriteString(generated + "# The app file\n\n`windlass deploy -f FILE` and `windlass plan -f FILE` read one YAML document or one JSON value. " +
		"Durations are texts such as `10s`, `5m` or `1h30m`. Choices may be written as `blueGreen`, `blue-green` or `STRATEGY_BLUE_GREEN`. " +
		"Fields have the names below, or their names in the protos (`health_check`).\n\n## Top level\n\nBesides these fields, the top level has the fields of [DeploymentSpec](#deploymentspec).\n\n")
	t := newTable("field", "type", "meaning")
	for _, f := range top {
		t.addRow(asCode(f.name), f.kind, f.text)
	}
	out.WriteString(t.String())
	err := messagesOf(s, &out, appFileMessages())
	return out.String(), err
}

// messagesOf writes the fields of each message.
func messagesOf(s *source, out *strings.Builder, messages []protoreflect.MessageDescriptor) error {
	for _, m := range messages {
		fmt.Fprintf(out, "\n## %s\n\n", m.Name())
		if about := s.comments[string(m.FullName())]; about != "" {
			out.WriteString(commentMarkdown(about) + "\n\n")
		}
		t := newTable("field", "type", "limits", "meaning")
		for i := range m.Fields().Len() {
			f := m.Fields().Get(i)
			if cli.IsReadOnly(f.FullName()) {
				continue
			}
			t.addRow(asCode(f.JSONName()), typeText(f), escapeProse(describeLimits(f)), escapeProse(s.comments[string(f.FullName())]))
		}
		out.WriteString(t.String())
		if err := enumsOf(s, out, m); err != nil {
			return err
		}
	}
	return nil
}

// commentMarkdown returns a comment as Markdown. It keeps blank lines, and turns indented lines into code.
func commentMarkdown(text string) string {
	var out []string
	indented := false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		code := strings.HasPrefix(line, "\t")
		if code != indented && (code || line != "") {
			out, indented = append(out, "```"), code
			if !code {
				out = append(out, "")
			}
		}
		if indented {
			line = strings.TrimPrefix(line, "\t")
		} else {
			line = escapeProse(line)
		}
		out = append(out, line)
	}
	if indented {
		out = append(out, "```")
	}
	return strings.Join(out, "\n")
}

func typeText(f protoreflect.FieldDescriptor) string {
	var one string
	switch {
	case f.IsMap():
		return "names to texts"
	case f.Message() != nil && f.Message().FullName() == durationName:
		one = "duration"
	case f.Message() != nil && f.Message().FullName() == structName:
		one = "names to values"
	case f.Message() != nil:
		one = fmt.Sprintf("[%s](#%s)", f.Message().Name(), strings.ToLower(string(f.Message().Name())))
	case f.Enum() != nil:
		one = "choice"
	case f.Kind() == protoreflect.StringKind:
		one = "text"
	case f.Kind() == protoreflect.BoolKind:
		one = "true or false"
	case f.Kind() == protoreflect.DoubleKind:
		one = "number"
	default:
		one = "whole number"
	}
	if f.IsList() {
		return "list: " + one
	}
	return one
}

func enumsOf(s *source, out *strings.Builder, m protoreflect.MessageDescriptor) error {
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		if f.Enum() == nil || cli.IsReadOnly(f.FullName()) {
			continue
		}
		fmt.Fprintf(out, "\nChoices of `%s`:\n\n", f.JSONName())
		t := newTable("choice", "meaning")
		for _, v := range enumChoices(f) {
			name := string(f.Enum().FullName().Parent()) + "." + v.full
			if f.Enum().Parent() != nil {
				name = string(f.Enum().FullName()) + "." + v.full
			}
			comment, ok := s.comments[name]
			if !ok {
				return fmt.Errorf("no comment of %s was read", name)
			}
			t.addRow(asCode(v.camel), escapeProse(comment))
		}
		out.WriteString(t.String())
	}
	return nil
}

// choiceName is one value of an enum in the forms that people write.
type choiceName struct{ full, kebab, camel string }

// enumChoices returns the values of a field's enum, without UNSPECIFIED.
func enumChoices(f protoreflect.FieldDescriptor) []choiceName {
	var out []choiceName
	values := f.Enum().Values()
	prefix := strings.TrimSuffix(string(values.Get(0).Name()), "UNSPECIFIED")
	for i := 1; i < values.Len(); i++ {
		full := string(values.Get(i).Name())
		kebab := strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(full, prefix)), "_", "-")
		out = append(out, choiceName{full, kebab, choices.Name(values.Get(i))})
	}
	return out
}

// fieldRules returns the rules of a field, or empty rules.
func fieldRules(f protoreflect.FieldDescriptor) *validate.FieldRules {
	r, err := protovalidate.ResolveFieldRules(f)
	if err != nil || r == nil {
		return &validate.FieldRules{}
	}
	return r
}

// describeLimits describes the limits of a field for people.
func describeLimits(f protoreflect.FieldDescriptor) string {
	r := fieldRules(f)
	var out []string
	between := func(lowest, most string) {
		switch {
		case lowest != "" && most != "":
			out = append(out, lowest+" to "+most)
		case lowest != "":
			out = append(out, "at least "+lowest)
		case most != "":
			out = append(out, "at most "+most)
		}
	}
	if x := r.GetRepeated(); x != nil {
		if x.GetMinItems() > 0 {
			out = append(out, fmt.Sprintf("at least %d", x.GetMinItems()))
		}
		if x.GetMaxItems() > 0 {
			out = append(out, fmt.Sprintf("at most %d", x.GetMaxItems()))
		}
		if x.GetUnique() {
			out = append(out, "each once")
		}
	}
	if x := r.GetMap(); x.GetMaxPairs() > 0 {
		out = append(out, fmt.Sprintf("at most %d", x.GetMaxPairs()))
	}
	if x := r.GetString(); x != nil {
		if x.GetMaxLen() > 0 {
			out = append(out, fmt.Sprintf("%d characters", x.GetMaxLen()))
		}
		if x.GetPattern() != "" {
			out = append(out, asCode(x.GetPattern()))
		}
	}
	if x := r.GetInt32(); x != nil {
		lowest, most := "", ""
		if x.HasGte() {
			lowest = strconv.Itoa(int(x.GetGte()))
		}
		if x.HasGt() {
			lowest = strconv.Itoa(int(x.GetGt()) + 1)
		}
		if x.HasLte() {
			most = strconv.Itoa(int(x.GetLte()))
		}
		between(lowest, most)
	}
	if x := r.GetInt64(); x != nil {
		lowest, most := "", ""
		if x.HasGte() {
			lowest = strconv.FormatInt(x.GetGte(), 10)
		}
		if x.HasLte() {
			most = strconv.FormatInt(x.GetLte(), 10)
		}
		between(lowest, most)
	}
	if x := r.GetDuration(); x != nil {
		lowest, most := "", ""
		if d := x.GetGte(); d != nil {
			lowest = shortDuration(d.AsDuration())
		}
		if d := x.GetLte(); d != nil {
			most = shortDuration(d.AsDuration())
		}
		between(lowest, most)
	}
	return strings.Join(out, ", ")
}
