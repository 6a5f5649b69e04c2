package tensor

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
)

// ParseJSON returns the data of a JSON list, which may be nested.
func ParseJSON(datatype string, list json.RawMessage) ([]byte, error) {
	if _, ok := SizeOf(datatype); !ok {
		return nil, fmt.Errorf("datatype %q is not supported", datatype)
	}
	d := json.NewDecoder(bytes.NewReader(list))
	d.UseNumber()
	var data []byte
	first, depth := true, 0
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("data is not a list: %w", err)
		}
		delim, isDelim := token.(json.Delim)
		if first && delim != '[' || delim == '{' {
			return nil, errors.New("data must be a list of values")
		}
		first = false
		if isDelim {
			if delim == '[' {
				depth++
			} else {
				depth--
			}
			continue
		}
		if data, err = appendValue(data, datatype, token); err != nil {
			return nil, err
		}
	}
	if first {
		return nil, errors.New("data is missing")
	}
	if depth != 0 {
		return nil, errors.New("data is a list without an end")
	}
	return data, nil
}

func appendValue(data []byte, datatype string, token json.Token) ([]byte, error) {
	wrong := func() error { return fmt.Errorf("data has %v, which is not of type %s", token, datatype) }
	switch v := token.(type) {
	case string:
		if datatype != Bytes {
			return nil, wrong()
		}
		return AppendElement(data, []byte(v)), nil
	case bool:
		if datatype != Bool {
			return nil, wrong()
		}
		if v {
			return append(data, 1), nil
		}
		return append(data, 0), nil
	case json.Number:
		return appendNumber(data, datatype, v.String(), wrong)
	default: // null
		return nil, wrong()
	}
}

func appendNumber(data []byte, datatype, text string, wrong func() error) ([]byte, error) {
	size, _ := SizeOf(datatype)
	var bits uint64
	var err error
	switch datatype {
	case FP32:
		var v float64
		v, err = strconv.ParseFloat(text, 32)
		bits = uint64(math.Float32bits(float32(v)))
	case FP64:
		var v float64
		v, err = strconv.ParseFloat(text, 64)
		bits = math.Float64bits(v)
	case Int8, Int16, Int32, Int64:
		var v int64
		v, err = strconv.ParseInt(text, 10, 8*size)
		bits = uint64(v)
	case Uint8, Uint16, Uint32, Uint64:
		bits, err = strconv.ParseUint(text, 10, 8*size)
	default:
		return nil, wrong()
	}
	if err != nil {
		return nil, wrong()
	}
	var all [8]byte
	binary.LittleEndian.PutUint64(all[:], bits)
	return append(data, all[:size]...), nil
}

// AppendJSON appends the data of a tensor as a JSON list. It returns an error if JSON has no form for a value.
func (t Tensor) AppendJSON(out []byte) ([]byte, error) {
	out = append(out, '[')
	if t.Datatype == Bytes {
		elements, err := t.Elements()
		if err != nil {
			return nil, err
		}
		for i, e := range elements {
			if i > 0 {
				out = append(out, ',')
			}
			text, err := json.Marshal(string(e))
			if err != nil {
				return nil, err
			}
			out = append(out, text...)
		}
		return append(out, ']'), nil
	}
	size, ok := SizeOf(t.Datatype)
	if !ok {
		return nil, fmt.Errorf("datatype %q is not supported", t.Datatype)
	}
	for at := 0; at+size <= len(t.Data); at += size {
		if at > 0 {
			out = append(out, ',')
		}
		var err error
		if out, err = appendText(out, t.Datatype, t.Data[at:at+size]); err != nil {
			return nil, fmt.Errorf("output '%s': %w", t.Name, err)
		}
	}
	return append(out, ']'), nil
}

func appendText(out []byte, datatype string, element []byte) ([]byte, error) {
	var all [8]byte
	copy(all[:], element)
	bits := binary.LittleEndian.Uint64(all[:])
	unused := 64 - 8*len(element)
	float := func(v float64, size int) ([]byte, error) {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, fmt.Errorf("JSON cannot express the value %v: ask for binary data", v)
		}
		return strconv.AppendFloat(out, v, 'g', -1, size), nil
	}
	switch datatype {
	case Bool:
		return strconv.AppendBool(out, bits != 0), nil
	case FP32:
		return float(float64(math.Float32frombits(uint32(bits))), 32)
	case FP64:
		return float(math.Float64frombits(bits), 64)
	case Int8, Int16, Int32, Int64:
		return strconv.AppendInt(out, int64(bits<<unused)>>unused, 10), nil
	default:
		return strconv.AppendUint(out, bits, 10), nil
	}
}
