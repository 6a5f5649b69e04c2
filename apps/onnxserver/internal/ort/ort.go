//go:build cgo

package ort

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"reflect"
	"runtime"
	"sync"
	"unsafe"

	onnx "github.com/yalue/onnxruntime_go"

	"github.com/windlass-run/windlass/apps/onnxserver"
	"github.com/windlass-run/windlass/apps/onnxserver/internal/tensor"
)

// opened guards the library, of which a process has one.
var opened struct {
	sync.Mutex
	library string
}

// Open loads the shared library. A process can load one library, once or more often.
func Open(library string) (onnxserver.Engine, error) {
	opened.Lock()
	defer opened.Unlock()
	if opened.library != "" {
		if opened.library != library {
			return nil, fmt.Errorf("ONNX Runtime is loaded from %s already", opened.library)
		}
		return engine{}, nil
	}
	if _, err := os.Stat(library); err != nil {
		return nil, fmt.Errorf("cannot find the library of ONNX Runtime: %w", err)
	}
	onnx.SetSharedLibraryPath(library)
	if err := onnx.InitializeEnvironment(onnx.WithLogLevelError()); err != nil {
		return nil, fmt.Errorf("cannot load ONNX Runtime from %s: %w", library, err)
	}
	// Some builds of ONNX Runtime send telemetry by default. Builds without telemetry refuse the call.
	_ = onnx.DisableTelemetry()
	opened.library = library
	return engine{}, nil
}

type engine struct{}

func (engine) Version() string { return onnx.GetVersion() }

// Open implements onnxserver.Engine.
func (engine) Open(file string, threads int) (_ onnxserver.Session, err error) {
	plain, err := newOptions(1)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, plain.Destroy()) }()
	// The library tells inputs and outputs only of a file. Without optimization this takes a fraction of the load.
	if err := plain.SetGraphOptimizationLevel(onnx.GraphOptimizationLevelDisableAll); err != nil {
		return nil, err
	}
	inputs, outputs, err := onnx.GetInputOutputInfoWithOptions(file, plain)
	if err != nil {
		return nil, err
	}
	s := &session{}
	if s.inputs, err = convertInfos("input", inputs); err != nil {
		return nil, err
	}
	if s.outputs, err = convertInfos("output", outputs); err != nil {
		return nil, err
	}
	options, err := newOptions(threads)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, options.Destroy()) }()
	s.run, err = onnx.NewDynamicAdvancedSession(file, namesOf(s.inputs), namesOf(s.outputs), options)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func newOptions(threads int) (*onnx.SessionOptions, error) {
	options, err := onnx.NewSessionOptions()
	if err != nil {
		return nil, err
	}
	err = errors.Join(
		options.SetIntraOpNumThreads(threads),
		options.SetInterOpNumThreads(1),
		// An arena never returns memory, so that one large request would hold its memory until the unload.
		options.SetCpuMemArena(false),
		options.SetMemPattern(false),
		// Threads of an idle model must not use the processor.
		options.AddSessionConfigEntry("session.intra_op.allow_spinning", "0"),
	)
	if err != nil {
		return nil, errors.Join(err, options.Destroy())
	}
	return options, nil
}

// datatypes has the datatypes of the Open Inference Protocol by ONNX Runtime's.
var datatypes = map[onnx.TensorElementDataType]string{
	onnx.TensorElementDataTypeBool: tensor.Bool, onnx.TensorElementDataTypeInt8: tensor.Int8, onnx.TensorElementDataTypeInt16: tensor.Int16,
	onnx.TensorElementDataTypeInt32: tensor.Int32, onnx.TensorElementDataTypeInt64: tensor.Int64, onnx.TensorElementDataTypeUint8: tensor.Uint8,
	onnx.TensorElementDataTypeUint16: tensor.Uint16, onnx.TensorElementDataTypeUint32: tensor.Uint32, onnx.TensorElementDataTypeUint64: tensor.Uint64,
	onnx.TensorElementDataTypeFloat: tensor.FP32, onnx.TensorElementDataTypeDouble: tensor.FP64, onnx.TensorElementDataTypeString: tensor.Bytes,
}

func convertInfos(kind string, infos []onnx.InputOutputInfo) ([]tensor.Info, error) {
	if len(infos) == 0 {
		return nil, fmt.Errorf("the model has no %s", kind)
	}
	var all []tensor.Info
	for _, i := range infos {
		datatype, ok := datatypes[i.DataType]
		if i.OrtValueType != onnx.ONNXTypeTensor || !ok {
			return nil, fmt.Errorf("%s '%s' has type %s of %s, which is not supported", kind, i.Name, i.OrtValueType, i.DataType)
		}
		all = append(all, tensor.Info{Name: i.Name, Datatype: datatype, Shape: append([]int64{}, i.Dimensions...)})
	}
	return all, nil
}

func namesOf(infos []tensor.Info) []string {
	var names []string
	for _, i := range infos {
		names = append(names, i.Name)
	}
	return names
}

type session struct {
	inputs, outputs []tensor.Info
	run             *onnx.DynamicAdvancedSession
}

func (s *session) Inputs() []tensor.Info  { return s.inputs }
func (s *session) Outputs() []tensor.Info { return s.outputs }
func (s *session) Close() error           { return s.run.Destroy() }

// Run implements onnxserver.Session. The end of ctx terminates the run.
func (s *session) Run(ctx context.Context, inputs []tensor.Tensor) (_ []tensor.Tensor, err error) {
	values := make([]onnx.Value, 0, len(inputs)+len(s.outputs))
	defer func() {
		for _, v := range values {
			err = errors.Join(err, v.Destroy())
		}
	}()
	for at, t := range inputs {
		value, err := newValue(t, len(s.inputs[at].Shape) == 0)
		if err != nil {
			return nil, fmt.Errorf("input '%s': %w", t.Name, err)
		}
		values = append(values, value)
	}
	options, err := onnx.NewRunOptions()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, options.Destroy()) }()
	// The options must not be destroyed while the function of AfterFunc uses them.
	terminated := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = options.Terminate()
		close(terminated)
	})
	results := make([]onnx.Value, len(s.outputs))
	err = s.run.RunWithOptions(values, results, options)
	if !stop() {
		<-terminated
	}
	// ONNX Runtime reads the data of the inputs, but does not keep it from being collected.
	runtime.KeepAlive(inputs)
	for _, v := range results {
		// For an output that is a scalar the library returns a nil pointer with an error.
		if v != nil && !reflect.ValueOf(v).IsNil() {
			values = append(values, v)
		}
	}
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, err
	}
	answer := make([]tensor.Tensor, 0, len(results))
	for at, v := range results {
		t, err := readValue(v)
		if err != nil {
			return nil, fmt.Errorf("output '%s': %w", s.outputs[at].Name, err)
		}
		t.Name, t.Datatype = s.outputs[at].Name, s.outputs[at].Datatype
		answer = append(answer, t)
	}
	return answer, nil
}

// newValue returns a value with the tensor's own data.
func newValue(t tensor.Tensor, scalar bool) (onnx.Value, error) {
	if t.Datatype == tensor.Bytes {
		elements, err := t.Elements()
		if err != nil {
			return nil, err
		}
		value, err := onnx.NewStringTensor(t.Shape)
		if err != nil {
			return nil, err
		}
		contents := make([]string, len(elements))
		for i, e := range elements {
			// The strings of the library end at the first zero byte.
			if bytes.IndexByte(e, 0) >= 0 {
				return nil, fmt.Errorf("element %d has a zero byte, which strings of ONNX Runtime cannot have", i)
			}
			contents[i] = string(e)
		}
		if err := value.SetContents(contents); err != nil {
			return nil, errors.Join(err, value.Destroy())
		}
		return value, nil
	}
	// The library has scalars of one type at a time. These are the types in use.
	if scalar {
		switch t.Datatype {
		case tensor.Int64:
			return onnx.NewScalar(int64(binary.LittleEndian.Uint64(t.Data))) //nolint:gosec // the bits are kept
		case tensor.Int32:
			return onnx.NewScalar(int32(binary.LittleEndian.Uint32(t.Data))) //nolint:gosec // the bits are kept
		}
	}
	data := t.Data
	// Data within the body of a request may begin at any byte, and new memory does not.
	if len(data) > 0 && uintptr(unsafe.Pointer(&data[0]))%8 != 0 {
		data = bytes.Clone(data)
	}
	for kind, datatype := range datatypes {
		if datatype == t.Datatype {
			return onnx.NewCustomDataTensor(t.Shape, data, kind)
		}
	}
	return nil, fmt.Errorf("datatype %s is not supported", t.Datatype)
}

// readValue returns a copy of a value.
func readValue(value onnx.Value) (tensor.Tensor, error) {
	t := tensor.Tensor{Shape: append([]int64{}, value.GetShape()...)}
	switch v := value.(type) {
	case *onnx.StringTensor:
		contents, err := v.GetContents()
		if err != nil {
			return t, err
		}
		for _, text := range contents {
			t.Data = tensor.AppendElement(t.Data, []byte(text))
		}
	case *onnx.Tensor[float32]:
		t.Data = copyBytes(v.GetData())
	case *onnx.Tensor[float64]:
		t.Data = copyBytes(v.GetData())
	case *onnx.Tensor[int8]:
		t.Data = copyBytes(v.GetData())
	case *onnx.Tensor[int16]:
		t.Data = copyBytes(v.GetData())
	case *onnx.Tensor[int32]:
		t.Data = copyBytes(v.GetData())
	case *onnx.Tensor[int64]:
		t.Data = copyBytes(v.GetData())
	case *onnx.Tensor[uint8]:
		t.Data = copyBytes(v.GetData())
	case *onnx.Tensor[uint16]:
		t.Data = copyBytes(v.GetData())
	case *onnx.Tensor[uint32]:
		t.Data = copyBytes(v.GetData())
	case *onnx.Tensor[uint64]:
		t.Data = copyBytes(v.GetData())
	case *onnx.Tensor[bool]:
		t.Data = copyBytes(v.GetData())
	default:
		return t, fmt.Errorf("type %T is not supported", value)
	}
	return t, nil
}

// copyBytes returns the bytes of the values. All systems for which ONNX Runtime is built are little-endian.
func copyBytes[T any](values []T) []byte {
	if len(values) == 0 {
		return []byte{}
	}
	return append([]byte{}, unsafe.Slice((*byte)(unsafe.Pointer(&values[0])), len(values)*int(unsafe.Sizeof(values[0])))...)
}
