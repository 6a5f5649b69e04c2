// Package choices names the values of protobuf enums as app files write them.
package choices

import (
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// Of returns the name of a value: "blueGreen" for STRATEGY_BLUE_GREEN. For a value that this release does not know, it
// returns the number.
func Of(v protoreflect.Enum) string {
	if d := v.Descriptor().Values().ByNumber(v.Number()); d != nil {
		return Name(d)
	}
	return strconv.Itoa(int(v.Number()))
}

// Name returns the name of the value that d describes, without the prefix of its enum. The prefix is the part of the
// first value's name before UNSPECIFIED.
func Name(d protoreflect.EnumValueDescriptor) string {
	first := d.Parent().(protoreflect.EnumDescriptor).Values().Get(0) //nolint:forcetypeassert // the parent of a value is an enum
	prefix := strings.TrimSuffix(string(first.Name()), "UNSPECIFIED")
	words := strings.Split(strings.ToLower(strings.TrimPrefix(string(d.Name()), prefix)), "_")
	for i, w := range words[1:] {
		words[i+1] = strings.ToUpper(w[:1]) + w[1:]
	}
	return strings.Join(words, "")
}
