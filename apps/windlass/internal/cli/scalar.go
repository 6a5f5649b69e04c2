package cli

import (
	"encoding/json"
	"fmt"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// scalar checks one value of the app file against its field, and returns it as
// protojson reads it.
func scalar(field protoreflect.FieldDescriptor, value any) (any, error) {
	switch field.Kind() { //nolint:exhaustive // kinds that the schema has; protojson judges others
	case protoreflect.Int32Kind, protoreflect.Int64Kind:
		n, ok := value.(json.Number)
		if text, quoted := value.(string); quoted && field.Kind() == protoreflect.Int64Kind {
			// It is how `-o yaml` prints one.
			n, ok = json.Number(text), true
			if _, err := n.Int64(); err != nil {
				ok = false
			}
		}
		if !ok {
			return nil, fmt.Errorf("want a whole number, got %s", shown(value))
		}
		i, err := n.Int64()
		if err != nil || field.Kind() == protoreflect.Int32Kind && (i < -1<<31 || i > 1<<31-1) {
			return nil, fmt.Errorf("%s is not a whole number in range", clip(n.String()))
		}
	case protoreflect.BoolKind:
		if _, ok := value.(bool); !ok {
			return nil, fmt.Errorf("want true or false, got %s", shown(value))
		}
	case protoreflect.StringKind:
		if n, ok := value.(json.Number); ok && amounts[field.FullName()] {
			return n.String(), nil
		}
		switch value.(type) {
		case string:
		case map[string]any, []any, nil:
			return nil, fmt.Errorf("want a text, got %s", shown(value))
		default:
			return nil, fmt.Errorf("%s is not a text: put it in quotes", shown(value))
		}
	case protoreflect.EnumKind:
		return choice(field.Enum(), value)
	}
	return value, nil
}

// amounts are texts that may be a number, or a percentage or a range of them.
var amounts = map[protoreflect.FullName]bool{
	"windlass.v1.RolloutPolicy.max_surge":       true,
	"windlass.v1.AutoRollback.failed_instances": true,
	"windlass.v1.AutoRollback.unhealthy":        true,
	"windlass.v1.RolloutPolicy.max_unavailable": true,
	// A pause without its unit is told what is missing by the API.
	"windlass.v1.CanaryStep.pause": true,
	// 204 among ranges.
	"windlass.v1.HealthCheck.expected_codes": true,
}

// joined writes a name as one word.
var joined = strings.NewReplacer("-", "", "_", "")

// choice turns "keep" into RETENTION_KEEP, and blueGreen into STRATEGY_BLUE_GREEN. The
// full name is taken, too: it is what `-o yaml` prints.
func choice(enum protoreflect.EnumDescriptor, value any) (string, error) {
	text, _ := value.(string)
	values := enum.Values()
	// The first value of every enum of ours is its prefix and UNSPECIFIED.
	prefix := strings.TrimSuffix(string(values.Get(0).Name()), "UNSPECIFIED")
	var names []string
	for i := range values.Len() {
		full := string(values.Get(i).Name())
		short := strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(full, prefix), "_", "-"))
		if text == full || strings.EqualFold(joined.Replace(text), joined.Replace(short)) && i > 0 {
			return full, nil
		}
		if i > 0 {
			names = append(names, short)
		}
	}
	return "", fmt.Errorf("%s is no choice: use %s", shown(value), strings.Join(names, " or "))
}
