package onnxserver

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/http"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/apps/onnxserver/internal/tensor"
	inferencepb "github.com/windlass-run/windlass/proto/gen/inference"
)

// grpcAPI has the calls of the Open Inference Protocol over gRPC. Connect serves them on the port of HTTP.
type grpcAPI struct{ *Server }

func grpcOptions(maxBytes int64) []connect.HandlerOption {
	return []connect.HandlerOption{connect.WithReadMaxBytes(int(maxBytes))}
}

// codes has the codes of gRPC by the status of HTTP.
var codes = map[int]connect.Code{
	http.StatusBadRequest: connect.CodeInvalidArgument, http.StatusNotFound: connect.CodeNotFound,
	http.StatusTooManyRequests: connect.CodeResourceExhausted, http.StatusServiceUnavailable: connect.CodeUnavailable,
	http.StatusGatewayTimeout: connect.CodeDeadlineExceeded, statusClosedRequest: connect.CodeCanceled,
}

// convertError returns an error of gRPC.
func convertError(refused *callError) error {
	code, ok := codes[refused.status]
	if !ok {
		code = connect.CodeInternal
	}
	return connect.NewError(code, errors.New(refused.message))
}

func (s grpcAPI) ServerLive(context.Context, *inferencepb.ServerLiveRequest) (*inferencepb.ServerLiveResponse, error) {
	return &inferencepb.ServerLiveResponse{Live: true}, nil
}

func (s grpcAPI) ServerReady(context.Context, *inferencepb.ServerReadyRequest) (*inferencepb.ServerReadyResponse, error) {
	return &inferencepb.ServerReadyResponse{Ready: s.isReady()}, nil
}

func (s grpcAPI) ModelReady(_ context.Context, q *inferencepb.ModelReadyRequest) (*inferencepb.ModelReadyResponse, error) {
	_, leave, ok := s.models.useModel(q.GetName(), q.GetVersion())
	if ok {
		leave()
	}
	return &inferencepb.ModelReadyResponse{Ready: ok}, nil
}

func (s grpcAPI) ServerMetadata(context.Context, *inferencepb.ServerMetadataRequest) (*inferencepb.ServerMetadataResponse, error) {
	return &inferencepb.ServerMetadataResponse{Name: serverName, Version: s.cfg.Engine.Version(), Extensions: extensions}, nil
}

func (s grpcAPI) ModelMetadata(_ context.Context, q *inferencepb.ModelMetadataRequest) (*inferencepb.ModelMetadataResponse, error) {
	m, leave, ok := s.models.useModel(q.GetName(), q.GetVersion())
	if !ok {
		return nil, convertError(unknownModel(q.GetName(), q.GetVersion()))
	}
	defer leave()
	convert := func(infos []tensor.Info) (all []*inferencepb.ModelMetadataResponse_TensorMetadata) {
		for _, i := range infos {
			all = append(all, &inferencepb.ModelMetadataResponse_TensorMetadata{Name: i.Name, Datatype: i.Datatype, Shape: i.Shape})
		}
		return all
	}
	return &inferencepb.ModelMetadataResponse{
		Name: m.name, Versions: []string{m.version}, Platform: platform,
		Inputs: convert(m.session.Inputs()), Outputs: convert(m.session.Outputs()),
	}, nil
}

func (s grpcAPI) ModelInfer(ctx context.Context, q *inferencepb.ModelInferRequest) (*inferencepb.ModelInferResponse, error) {
	result, refused := s.infer(ctx, "grpc", q.GetModelName(), q.GetModelVersion(), func() (inference, *callError) { return convertRequest(q) })
	if refused != nil {
		return nil, convertError(refused)
	}
	response := &inferencepb.ModelInferResponse{ModelName: result.model, ModelVersion: result.version, Id: result.id}
	for _, t := range result.outputs {
		response.Outputs = append(response.Outputs, &inferencepb.ModelInferResponse_InferOutputTensor{Name: t.Name, Datatype: t.Datatype, Shape: t.Shape})
		response.RawOutputContents = append(response.RawOutputContents, t.Data)
	}
	return response, nil
}

// convertRequest reads the tensors of a request, whose data is in raw_input_contents or in each input.
func convertRequest(q *inferencepb.ModelInferRequest) (inference, *callError) {
	wanted := inference{id: q.GetId()}
	for _, o := range q.GetOutputs() {
		wanted.outputs = append(wanted.outputs, o.GetName())
	}
	raw := q.GetRawInputContents()
	if len(raw) > 0 && len(raw) != len(q.GetInputs()) {
		return wanted, badRequest("raw_input_contents has %d elements, and the request has %d inputs", len(raw), len(q.GetInputs()))
	}
	for i, input := range q.GetInputs() {
		t := tensor.Tensor{Name: input.GetName(), Datatype: input.GetDatatype(), Shape: input.GetShape()}
		if len(raw) > 0 {
			if input.GetContents() != nil {
				return wanted, badRequest("input '%s' has contents, and the request has raw_input_contents: send one of them", input.GetName())
			}
			t.Data = raw[i]
		} else {
			var err error
			if t.Data, err = readContents(input.GetDatatype(), input.GetContents()); err != nil {
				return wanted, badRequest("input '%s': %v", input.GetName(), err)
			}
		}
		wanted.inputs = append(wanted.inputs, t)
	}
	return wanted, nil
}

// readContents returns the bytes of contents, whose field depends on the datatype.
func readContents(datatype string, contents *inferencepb.InferTensorContents) ([]byte, error) {
	var data []byte
	order := binary.LittleEndian
	switch datatype {
	case tensor.Bool:
		for _, v := range contents.GetBoolContents() {
			if v {
				data = append(data, 1)
			} else {
				data = append(data, 0)
			}
		}
	case tensor.Int8, tensor.Int16, tensor.Int32:
		return narrowValues(datatype, contents.GetIntContents(), map[string][2]int64{
			tensor.Int8: {math.MinInt8, math.MaxInt8}, tensor.Int16: {math.MinInt16, math.MaxInt16}, tensor.Int32: {math.MinInt32, math.MaxInt32},
		})
	case tensor.Uint8, tensor.Uint16, tensor.Uint32:
		return narrowValues(datatype, contents.GetUintContents(), map[string][2]int64{
			tensor.Uint8: {0, math.MaxUint8}, tensor.Uint16: {0, math.MaxUint16}, tensor.Uint32: {0, math.MaxUint32},
		})
	case tensor.Int64:
		for _, v := range contents.GetInt64Contents() {
			data = order.AppendUint64(data, uint64(v))
		}
	case tensor.Uint64:
		for _, v := range contents.GetUint64Contents() {
			data = order.AppendUint64(data, v)
		}
	case tensor.FP32:
		for _, v := range contents.GetFp32Contents() {
			data = order.AppendUint32(data, math.Float32bits(v))
		}
	case tensor.FP64:
		for _, v := range contents.GetFp64Contents() {
			data = order.AppendUint64(data, math.Float64bits(v))
		}
	case tensor.Bytes:
		for _, v := range contents.GetBytesContents() {
			data = tensor.AppendElement(data, v)
		}
	default:
		return nil, fmt.Errorf("datatype %q is not supported", datatype)
	}
	return data, nil
}

// narrowValues returns the bytes of values that are sent in a wider type.
func narrowValues[T int32 | uint32](datatype string, values []T, ranges map[string][2]int64) ([]byte, error) {
	size, _ := tensor.SizeOf(datatype)
	limits := ranges[datatype]
	var data []byte
	for _, v := range values {
		if int64(v) < limits[0] || int64(v) > limits[1] {
			return nil, fmt.Errorf("contents have %d, which is not of type %s", v, datatype)
		}
		var all [8]byte
		binary.LittleEndian.PutUint64(all[:], uint64(v))
		data = append(data, all[:size]...)
	}
	return data, nil
}

func (s grpcAPI) RepositoryIndex(_ context.Context, q *inferencepb.RepositoryIndexRequest) (*inferencepb.RepositoryIndexResponse, error) {
	index, refused := s.listIndex(q.GetReady())
	if refused != nil {
		return nil, convertError(refused)
	}
	response := &inferencepb.RepositoryIndexResponse{}
	for _, e := range index {
		response.Models = append(response.Models, &inferencepb.RepositoryIndexResponse_ModelIndex{Name: e.Name, Version: e.Version, State: string(e.State), Reason: e.Reason})
	}
	return response, nil
}

func (s grpcAPI) RepositoryModelLoad(ctx context.Context, q *inferencepb.RepositoryModelLoadRequest) (*inferencepb.RepositoryModelLoadResponse, error) {
	if refused := s.loadNamed(ctx, q.GetModelName()); refused != nil {
		return nil, convertError(refused)
	}
	return &inferencepb.RepositoryModelLoadResponse{}, nil
}

func (s grpcAPI) RepositoryModelUnload(ctx context.Context, q *inferencepb.RepositoryModelUnloadRequest) (*inferencepb.RepositoryModelUnloadResponse, error) {
	if refused := s.unloadNamed(ctx, q.GetModelName()); refused != nil {
		return nil, convertError(refused)
	}
	return &inferencepb.RepositoryModelUnloadResponse{}, nil
}
