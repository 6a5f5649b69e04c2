package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/windlass-run/windlass/pkg/choices"
)

// checkScalar checks one value of the app file against its field, and returns the value that protojson reads.
func checkScalar(field protoreflect.FieldDescriptor, value any) (any, error) {
	switch field.Kind() { //nolint:exhaustive // kinds that the schema has; protojson judges others
	case protoreflect.Int32Kind, protoreflect.Int64Kind:
		if text, unclear := value.(ambiguous); unclear && ambiguousNumber.MatchString(string(text)) {
			return nil, errors.New(plainNumber(string(text)))
		}
		n, ok := value.(json.Number)
		if text, quoted := value.(string); quoted && field.Kind() == protoreflect.Int64Kind {
			// `-o yaml` prints an int64 as a text.
			n, ok = json.Number(text), true
			if _, err := n.Int64(); err != nil {
				ok = false
			}
		}
		if !ok {
			return nil, fmt.Errorf("want a whole number, got %s", valueText(value))
		}
		i, err := wholeNumber(n)
		if err != nil || field.Kind() == protoreflect.Int32Kind && (i < -1<<31 || i > 1<<31-1) {
			return nil, fmt.Errorf("%s is not a whole number in range", truncateText(n.String()))
		}
		return json.Number(strconv.FormatInt(i, 10)), nil
	case protoreflect.DoubleKind:
		n, ok := value.(json.Number)
		if text, unclear := value.(ambiguous); unclear && fraction.MatchString(string(text)) && !decimalZero.MatchString(string(text)) {
			n, ok = json.Number(text), true
		}
		f, err := n.Float64()
		if !ok || err != nil {
			return nil, fmt.Errorf("want a number, got %s", valueText(value))
		}
		return f, nil
	case protoreflect.BoolKind:
		on, ok := parseBool(value)
		if !ok {
			return nil, fmt.Errorf("want true or false, got %s", valueText(value))
		}
		return on, nil
	case protoreflect.StringKind:
		if _, isNumeric := numericTexts[field.FullName()]; isNumeric {
			switch n := value.(type) {
			case json.Number:
				return n.String(), nil
			case ambiguous:
				if ambiguousNumber.MatchString(string(n)) {
					return nil, errors.New(plainNumber(string(n)))
				}
			}
		}
		switch value.(type) {
		case string:
		case map[string]any, []any, nil:
			return nil, fmt.Errorf("want a text, got %s", valueText(value))
		default:
			return nil, fmt.Errorf("%s is not a text: put it in quotes", valueText(value))
		}
	case protoreflect.EnumKind:
		return parseChoice(field.Enum(), value)
	}
	return value, nil
}

// wholeNumber converts a number to an integer. The number may be written as 4, 4.0 or 4e0.
func wholeNumber(n json.Number) (int64, error) {
	i, err := n.Int64()
	if err == nil {
		return i, nil
	}
	f, floatErr := n.Float64()
	if floatErr != nil || f != math.Trunc(f) || math.Abs(f) >= 1<<53 {
		return 0, err
	}
	return int64(f), nil
}

// parseBool converts a value to a boolean. It accepts yes, no, on and off, which some YAML parsers read as texts.
func parseBool(value any) (on, ok bool) {
	switch v := value.(type) {
	case bool:
		return v, true
	case ambiguous:
		switch strings.ToLower(string(v)) {
		case "y", "yes", "on":
			return true, true
		case "n", "no", "off":
			return false, true
		}
	}
	return false, false
}

// numericTexts are the fields of type string in which a number need not be in quotes. The value is true if a number
// is valid there. If it is false, the API refuses the number with a better error.
var numericTexts = map[protoreflect.FullName]bool{
	"windlass.v1.AutoRollback.failed_instances": true,
	"windlass.v1.AutoRollback.unhealthy":        true,
	// A pause needs a unit.
	"windlass.v1.CanaryStep.pause": false,
	// A code such as 204 is valid next to ranges.
	"windlass.v1.HealthCheck.expected_codes":    true,
	"windlass.v1.RolloutPolicy.max_surge":       true,
	"windlass.v1.RolloutPolicy.max_unavailable": true,
	"windlass.v1.ScalingMetric.down":            true,
	"windlass.v1.ScalingMetric.target":          true,
	"windlass.v1.ScalingMetric.up":              true,
	"windlass.v1.ScalingPace.step":              true,
}

// IsNumericText reports whether the field is a text, and a number without quotes is valid for it in an app file.
func IsNumericText(field protoreflect.FullName) bool { return numericTexts[field] }

// wordSeparators removes the separators of words from a name.
var wordSeparators = strings.NewReplacer("-", "", "_", "")

// parseChoice turns "keep" into RETENTION_KEEP, and blueGreen into STRATEGY_BLUE_GREEN. It also accepts the full
// name, which `-o yaml` prints.
func parseChoice(enum protoreflect.EnumDescriptor, value any) (string, error) {
	text, _ := value.(string)
	if unclear, ok := value.(ambiguous); ok {
		text = string(unclear)
	}
	values := enum.Values()
	// The first value of every enum is the prefix followed by UNSPECIFIED.
	prefix := strings.TrimSuffix(string(values.Get(0).Name()), "UNSPECIFIED")
	var names []string
	for i := range values.Len() {
		full := string(values.Get(i).Name())
		short := strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(full, prefix), "_", "-"))
		if text == full || strings.EqualFold(wordSeparators.Replace(text), wordSeparators.Replace(short)) && i > 0 {
			return full, nil
		}
		if i > 0 {
			names = append(names, choices.Name(values.Get(i)))
		}
	}
	return "", fmt.Errorf("%s is not one of the choices: use %s", valueText(value), strings.Join(names, " or "))
}
