// Package choices names the values of protobuf enums as app files write them.
package choices

import (
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// Of returns the name of a value: STRATEGY_BLUE_GREEN is "blueGreen". A value that this release does not know is
// its number.
func Of(v protoreflect.Enum) string {
	if d := v.Descriptor().Values().ByNumber(v.Number()); d != nil {
		return Name(d)
	}
	return strconv.Itoa(int(v.Number()))
}

// Name returns the name of the value that d describes. The prefix of its enum is left out, which is what the first
// value has before UNSPECIFIED.
func Name(d protoreflect.EnumValueDescriptor) string {
	first := d.Parent().(protoreflect.EnumDescriptor).Values().Get(0) //nolint:forcetypeassert // values are of an enum
	prefix := strings.TrimSuffix(string(first.Name()), "UNSPECIFIED")
	words := strings.Split(strings.ToLower(strings.TrimPrefix(string(d.Name()), prefix)), "_")
	for i, w := range words[1:] {
		words[i+1] = strings.ToUpper(w[:1]) + w[1:]
	}
	return strings.Join(words, "")
}
