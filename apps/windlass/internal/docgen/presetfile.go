package main

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/windlass-run/windlass/pkg/preset"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// presetFile describes the file of `windlass preset set`. Messages of the app's file are linked to its page.
func presetFile(s *source) (string, error) {
	var out strings.Builder
	out.WriteString(generated + "# The preset's file\n\n`windlass preset set NAME -f FILE` reads one YAML document or one JSON value with the fields of " +
		"[PresetDefinition](#presetdefinition). The guide of [presets](../guides/presets.md#presets-of-a-workspace) has an example.\n\n" +
		"## Expressions\n\nExpressions are in [CEL](https://cel.dev), with its standard functions and macros. `atLeast(engineVersion, \"0.20\")` compares " +
		"versions of engines. A number that the app leaves out is 0, and a text is empty.\n\n")
	t := newTable("variable", "type", "value")
	for _, v := range preset.Variables() {
		t.addRow(asCode(v.Name), v.Type, escapeProse(v.About))
	}
	out.WriteString(t.String())
	elsewhere := appFileMessages()
	messages := slices.DeleteFunc(messagesIn(&windlassv1.PresetDefinition{}), func(m protoreflect.MessageDescriptor) bool {
		return slices.ContainsFunc(elsewhere, func(o protoreflect.MessageDescriptor) bool { return o.FullName() == m.FullName() })
	})
	if err := messagesOf(s, &out, messages); err != nil {
		return "", err
	}
	text := out.String()
	for _, m := range elsewhere {
		anchor := "(#" + strings.ToLower(string(m.Name())) + ")"
		text = strings.ReplaceAll(text, fmt.Sprintf("[%s]%s", m.Name(), anchor), fmt.Sprintf("[%s](app-file.md%s)", m.Name(), strings.Trim(anchor, "()")))
	}
	return text, nil
}
