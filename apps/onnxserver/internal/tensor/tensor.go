// Package tensor has the tensors of the Open Inference Protocol, and their forms in JSON and in bytes.
package tensor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
)

// The datatypes that models may have. FP16 and BF16 are missing, because ONNX Runtime's Go library cannot read them.
const (
	Bool   = "BOOL"
	Int8   = "INT8"
	Int16  = "INT16"
	Int32  = "INT32"
	Int64  = "INT64"
	Uint8  = "UINT8"
	Uint16 = "UINT16"
	Uint32 = "UINT32"
	Uint64 = "UINT64"
	FP32   = "FP32"
	FP64   = "FP64"
	Bytes  = "BYTES"
)

// sizes has the bytes of one element. Elements of BYTES differ in size.
var sizes = map[string]int{
	Bool: 1, Int8: 1, Int16: 2, Int32: 4, Int64: 8, Uint8: 1, Uint16: 2, Uint32: 4, Uint64: 8, FP32: 4, FP64: 8, Bytes: 0,
}

// maxElements limits a tensor. No body has more elements.
const maxElements = 1 << 31

// Info describes an input or an output of a model. -1 in the shape is a dimension of any size.
type Info struct {
	Name     string  `json:"name"`
	Datatype string  `json:"datatype"`
	Shape    []int64 `json:"shape"`
}

// Tensor is a tensor with its data, little-endian and row by row. Each element of BYTES begins with its length in 4
// bytes.
type Tensor struct {
	Name     string
	Datatype string
	Shape    []int64
	Data     []byte
}

// SizeOf returns the bytes of one element, or 0 for BYTES. The result is false for an unknown datatype.
func SizeOf(datatype string) (int, bool) {
	size, ok := sizes[datatype]
	return size, ok
}

// CountElements returns the number of elements of a shape.
func CountElements(shape []int64) (int, error) {
	count := int64(1)
	for _, n := range shape {
		if n < 0 || n > maxElements || count*n > maxElements {
			return 0, fmt.Errorf("shape %v is negative or too large", shape)
		}
		count *= n
	}
	return int(count), nil
}

// Check compares the size of the data with shape and datatype.
func (t Tensor) Check() error {
	size, ok := SizeOf(t.Datatype)
	if !ok {
		return fmt.Errorf("datatype %q is not supported", t.Datatype)
	}
	count, err := CountElements(t.Shape)
	if err != nil {
		return err
	}
	if t.Datatype == Bytes {
		n := 0
		for _, err := range t.eachElement() {
			if err != nil {
				return err
			}
			n++
		}
		if n != count {
			return fmt.Errorf("data has %d elements, but its shape %v has %d", n, t.Shape, count)
		}
		return nil
	}
	if len(t.Data) != count*size {
		return fmt.Errorf("data has %d bytes, but %s of shape %v has %d", len(t.Data), t.Datatype, t.Shape, count*size)
	}
	return nil
}

// Fits reports whether a tensor may be the input that is described.
func (i Info) Fits(t Tensor) error {
	if t.Datatype != i.Datatype {
		return fmt.Errorf("datatype must be %s, not %s", i.Datatype, t.Datatype)
	}
	// A scalar may also be sent as a list with one element, as most clients do.
	if len(i.Shape) == 0 {
		if count, err := CountElements(t.Shape); err != nil || count != 1 {
			return fmt.Errorf("shape must be [1], not %v", t.Shape)
		}
		return nil
	}
	fits := len(t.Shape) == len(i.Shape)
	for at := 0; fits && at < len(i.Shape); at++ {
		fits = i.Shape[at] < 0 || i.Shape[at] == t.Shape[at]
	}
	if !fits {
		return fmt.Errorf("shape must be %v, not %v", i.Shape, t.Shape)
	}
	return nil
}

// Elements returns the elements of a tensor with the datatype BYTES. A list of short elements is many times larger
// than the data.
func (t Tensor) Elements() ([][]byte, error) {
	var elements [][]byte
	for e, err := range t.eachElement() {
		if err != nil {
			return nil, err
		}
		elements = append(elements, e)
	}
	return elements, nil
}

// eachElement yields the elements of a tensor with the datatype BYTES. An error is the last value.
func (t Tensor) eachElement() iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for data := t.Data; len(data) > 0; {
			if len(data) < 4 {
				yield(nil, errors.New("data ends in the length of an element"))
				return
			}
			n := binary.LittleEndian.Uint32(data)
			data = data[4:]
			if uint64(n) > uint64(len(data)) {
				yield(nil, fmt.Errorf("data has an element of %d bytes, and only %d bytes are left", n, len(data)))
				return
			}
			if !yield(data[:n], nil) {
				return
			}
			data = data[n:]
		}
	}
}

// AppendElement appends an element of the datatype BYTES.
func AppendElement(data, element []byte) []byte {
	data = binary.LittleEndian.AppendUint32(data, uint32(len(element)))
	return append(data, element...)
}

// FromFloats returns a tensor with the datatype FP32.
func FromFloats(name string, shape []int64, values []float32) Tensor {
	data := make([]byte, 0, 4*len(values))
	for _, v := range values {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
	}
	return Tensor{Name: name, Datatype: FP32, Shape: slices.Clone(shape), Data: data}
}

// Floats returns the values of a tensor with the datatype FP32.
func (t Tensor) Floats() ([]float32, error) {
	if t.Datatype != FP32 || len(t.Data)%4 != 0 {
		return nil, fmt.Errorf("tensor %s has datatype %s, not FP32", t.Name, t.Datatype)
	}
	values := make([]float32, len(t.Data)/4)
	for i := range values {
		values[i] = math.Float32frombits(binary.LittleEndian.Uint32(t.Data[4*i:]))
	}
	return values, nil
}
