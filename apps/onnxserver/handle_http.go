package onnxserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/windlass-run/windlass/apps/onnxserver/internal/tensor"
	"github.com/windlass-run/windlass/proto/gen/inference/inferenceconnect"
)

// binaryHeader has the length of the JSON of a body that goes on with binary data, as in Triton's extension.
const binaryHeader = "Inference-Header-Content-Length"

func (s *Server) newHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v2", s.handleServerMetadata)
	mux.HandleFunc("GET /v2/health/live", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	mux.HandleFunc("GET /v2/health/ready", s.handleReady)
	mux.HandleFunc("GET /health", s.handleReady)
	for _, model := range []string{"/v2/models/{model}", "/v2/models/{model}/versions/{version}"} {
		mux.HandleFunc("GET "+model, s.handleModelMetadata)
		mux.HandleFunc("GET "+model+"/ready", s.handleModelReady)
		mux.HandleFunc("POST "+model+"/infer", s.handleInfer)
	}
	mux.HandleFunc("POST /v2/repository/index", s.handleIndex)
	mux.HandleFunc("POST /v2/repository/models/{model}/load", s.handleLoad)
	mux.HandleFunc("POST /v2/repository/models/{model}/unload", s.handleUnload)
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{}))
	path, grpc := inferenceconnect.NewGRPCInferenceServiceHandler(grpcAPI{s}, grpcOptions(s.cfg.MaxBodyBytes)...)
	mux.Handle(path, limitTime(grpc, s.cfg.RequestTimeout))
	return mux
}

// limitTime limits the time in which a gRPC call is read, run and answered.
func limitTime(next http.Handler, run time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		control, now := http.NewResponseController(w), time.Now()
		// A connection without deadlines keeps the limits of the server.
		_ = control.SetReadDeadline(now.Add(bodyTimeout))
		_ = control.SetWriteDeadline(now.Add(bodyTimeout + run + writeTimeout))
		next.ServeHTTP(w, r)
	})
}

// isReady reports whether the server takes requests. A draining server answers only what it accepted before.
func (s *Server) isReady() bool { return !s.draining.Load() }

func (s *Server) handleReady(w http.ResponseWriter, _ *http.Request) {
	if !s.isReady() {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusOK)
}

// serverName and extensions describe the server.
const serverName = "onnxserver"

var extensions = []string{"model_repository", "binary_tensor_data"}

func (s *Server) handleServerMetadata(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]any{"name": serverName, "version": s.cfg.Engine.Version(), "extensions": extensions})
}

// platform is the name of the model format in the protocol.
const platform = "onnx_onnxv1"

func (s *Server) handleModelMetadata(w http.ResponseWriter, r *http.Request) {
	m, leave, ok := s.models.useModel(r.PathValue("model"), r.PathValue("version"))
	if !ok {
		writeError(w, unknownModel(r.PathValue("model"), r.PathValue("version")))
		return
	}
	metadata := map[string]any{
		"name": m.name, "versions": []string{m.version}, "platform": platform, "inputs": m.session.Inputs(), "outputs": m.session.Outputs(),
	}
	leave() // a client that reads nothing must not keep the model from being unloaded
	writeJSON(w, http.StatusOK, metadata)
}

func (s *Server) handleModelReady(w http.ResponseWriter, r *http.Request) {
	_, leave, ok := s.models.useModel(r.PathValue("model"), r.PathValue("version"))
	if !ok {
		writeError(w, unknownModel(r.PathValue("model"), r.PathValue("version")))
		return
	}
	leave()
	w.WriteHeader(http.StatusOK)
}

func (s *Server) handleIndex(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Ready bool `json:"ready"`
	}
	if refused := s.decodeBody(w, r, &body); refused != nil {
		writeError(w, refused)
		return
	}
	index, refused := s.listIndex(body.Ready)
	if refused != nil {
		writeError(w, refused)
		return
	}
	writeJSON(w, http.StatusOK, index)
}

func (s *Server) handleLoad(w http.ResponseWriter, r *http.Request) { s.changeModel(w, r, s.loadNamed) }

func (s *Server) handleUnload(w http.ResponseWriter, r *http.Request) {
	s.changeModel(w, r, s.unloadNamed)
}

// changeModel loads or unloads a model. The body may have Triton's parameters, of which this server needs none.
func (s *Server) changeModel(w http.ResponseWriter, r *http.Request, change func(ctx context.Context, name string) *callError) {
	var body map[string]any
	if refused := s.decodeBody(w, r, &body); refused != nil {
		writeError(w, refused)
		return
	}
	if refused := change(r.Context(), r.PathValue("model")); refused != nil {
		writeError(w, refused)
		return
	}
	w.WriteHeader(http.StatusOK)
}

// decodeBody reads a JSON body. An empty body leaves v as it is.
func (s *Server) decodeBody(w http.ResponseWriter, r *http.Request, v any) *callError {
	data, refused := s.readBody(w, r)
	if refused != nil || len(data) == 0 {
		return refused
	}
	if err := json.Unmarshal(data, v); err != nil {
		return badRequest("the body is not the JSON that this call takes: %v", err)
	}
	return nil
}

func (s *Server) readBody(w http.ResponseWriter, r *http.Request) ([]byte, *callError) {
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(bodyTimeout))
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, s.cfg.MaxBodyBytes))
	_ = control.SetReadDeadline(time.Time{})
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return nil, &callError{status: http.StatusRequestEntityTooLarge, message: fmt.Sprintf("the body has more than %d bytes", tooLarge.Limit)}
	}
	if err != nil {
		return nil, badRequest("the body cannot be read: %v", err)
	}
	return data, nil
}

// httpInferRequest is the JSON of a request.
type httpInferRequest struct {
	ID         string `json:"id"`
	Parameters struct {
		BinaryDataOutput bool `json:"binary_data_output"`
	} `json:"parameters"`
	Inputs []struct {
		Name       string  `json:"name"`
		Shape      []int64 `json:"shape"`
		Datatype   string  `json:"datatype"`
		Parameters struct {
			BinaryDataSize *int `json:"binary_data_size"`
		} `json:"parameters"`
		Data json.RawMessage `json:"data"`
	} `json:"inputs"`
	Outputs []struct {
		Name       string `json:"name"`
		Parameters struct {
			BinaryData *bool `json:"binary_data"`
		} `json:"parameters"`
	} `json:"outputs"`
}

// isBinary reports whether the request wants an output as binary data.
func (q httpInferRequest) isBinary(output string) bool {
	for _, o := range q.Outputs {
		if o.Name == output && o.Parameters.BinaryData != nil {
			return *o.Parameters.BinaryData
		}
	}
	return q.Parameters.BinaryDataOutput
}

func (s *Server) handleInfer(w http.ResponseWriter, r *http.Request) {
	// An inference that the handler answers only after the deadline of its write is lost, so the deadline counts from the
	// end of the inference.
	var q httpInferRequest
	result, refused := s.infer(r.Context(), "http", r.PathValue("model"), r.PathValue("version"), func() (inference, *callError) {
		data, refused := s.readBody(w, r)
		if refused != nil {
			return inference{}, refused
		}
		return parseInfer(data, r.Header.Get(binaryHeader), &q)
	})
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout))
	if refused != nil {
		writeError(w, refused)
		return
	}
	writeInference(w, result, q)
}

// parseInfer parses a body: JSON, and after it the binary data of inputs if the header has the length of the JSON.
func parseInfer(body []byte, jsonLength string, q *httpInferRequest) (inference, *callError) {
	binary := []byte{}
	if jsonLength != "" {
		n, err := strconv.Atoi(jsonLength)
		if err != nil || n < 0 || n > len(body) {
			return inference{}, badRequest("%s must be at most the length of the body, %d, not %q", binaryHeader, len(body), jsonLength)
		}
		body, binary = body[:n], body[n:]
	}
	if err := json.Unmarshal(body, q); err != nil {
		return inference{}, badRequest("the body is not a request for inference: %v", err)
	}
	wanted := inference{id: q.ID}
	for _, o := range q.Outputs {
		wanted.outputs = append(wanted.outputs, o.Name)
	}
	for _, input := range q.Inputs {
		t := tensor.Tensor{Name: input.Name, Datatype: input.Datatype, Shape: input.Shape}
		if size := input.Parameters.BinaryDataSize; size != nil {
			if *size < 0 || *size > len(binary) {
				return inference{}, badRequest("input '%s': binary_data_size is %d, and %d bytes are left", input.Name, *size, len(binary))
			}
			t.Data, binary = binary[:*size], binary[*size:]
		} else {
			var err error
			if t.Data, err = tensor.ParseJSON(input.Datatype, input.Data); err != nil {
				return inference{}, badRequest("input '%s': %v", input.Name, err)
			}
		}
		wanted.inputs = append(wanted.inputs, t)
	}
	if len(binary) > 0 {
		return inference{}, badRequest("the body has %d bytes more than its inputs", len(binary))
	}
	return wanted, nil
}

// httpOutput is an output in the JSON of an answer.
type httpOutput struct {
	tensor.Info
	Parameters map[string]int  `json:"parameters,omitempty"`
	Data       json.RawMessage `json:"data,omitempty"`
}

func writeInference(w http.ResponseWriter, result answer, q httpInferRequest) {
	body := struct {
		ModelName    string       `json:"model_name"`
		ModelVersion string       `json:"model_version"`
		ID           string       `json:"id,omitempty"`
		Outputs      []httpOutput `json:"outputs"`
	}{result.model, result.version, result.id, []httpOutput{}}
	var binary []byte
	anyBinary := false
	for _, t := range result.outputs {
		o := httpOutput{Info: tensor.Info{Name: t.Name, Datatype: t.Datatype, Shape: t.Shape}}
		if q.isBinary(t.Name) {
			anyBinary = true
			o.Parameters = map[string]int{"binary_data_size": len(t.Data)}
			binary = append(binary, t.Data...)
		} else {
			data, err := t.AppendJSON(nil)
			if err != nil {
				// 500 would count as a failure of the server.
				writeError(w, badRequest("output '%s': %v: ask for it as binary data", t.Name, err))
				return
			}
			o.Data = data
		}
		body.Outputs = append(body.Outputs, o)
	}
	if !anyBinary {
		writeJSON(w, http.StatusOK, body)
		return
	}
	text, err := json.Marshal(body)
	if err != nil {
		writeError(w, &callError{status: http.StatusInternalServerError, message: err.Error()})
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set(binaryHeader, strconv.Itoa(len(text)))
	w.Header().Set("Content-Length", strconv.Itoa(len(text)+len(binary)))
	_, _ = io.Copy(w, io.MultiReader(bytes.NewReader(text), bytes.NewReader(binary)))
}

func writeError(w http.ResponseWriter, e *callError) {
	status := e.status
	if status == statusClosedRequest {
		panic(http.ErrAbortHandler) // no client reads the answer
	}
	if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	writeJSON(w, status, map[string]string{"error": e.message})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	data, err := json.Marshal(v)
	if err != nil {
		status, data = http.StatusInternalServerError, []byte(`{"error":"the answer cannot be written as JSON"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(data)
}
