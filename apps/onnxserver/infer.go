package onnxserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/windlass-run/windlass/apps/onnxserver/internal/tensor"
)

// callError is an answer that refuses a request. The status is that of HTTP.
type callError struct {
	status  int
	message string
}

func (e *callError) Error() string { return e.message }

func badRequest(format string, args ...any) *callError {
	return &callError{status: http.StatusBadRequest, message: fmt.Sprintf(format, args...)}
}

func unknownModel(name, version string) *callError {
	message := fmt.Sprintf("Request for unknown model: '%s' is not found", name)
	if version != "" {
		message = fmt.Sprintf("Request for unknown model: '%s' version %s is not found", name, version)
	}
	return &callError{status: http.StatusNotFound, message: message}
}

// statusClosedRequest is nginx's code for a client that left. Only metrics show it.
const statusClosedRequest = 499

var errRequestTimeout = errors.New("the request took longer than the server allows")

// inference is a request for inference.
type inference struct {
	id     string
	inputs []tensor.Tensor
	// outputs are the names of the wanted outputs. Empty means all.
	outputs []string
}

// answer is the answer to an inference.
type answer struct {
	model, version, id string
	outputs            []tensor.Tensor
}

// infer runs a model. read reads the request, which must name a loaded model. It runs after the model was found, because
// its error would hide that the model is not loaded, and a gateway sends such a request to another server.
func (s *Server) infer(ctx context.Context, protocol, model, version string, read func() (inference, *callError)) (result answer, refused *callError) {
	label := ""
	defer func() {
		status := http.StatusOK
		if refused != nil {
			status = refused.status
		}
		s.metrics.requests.WithLabelValues(label, protocol, fmt.Sprint(status)).Inc()
	}()
	ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.RequestTimeout, errRequestTimeout)
	defer cancel()
	used, leave, ok := s.models.useModel(model, version)
	if !ok {
		return answer{}, unknownModel(model, version)
	}
	defer leave()
	label = used.name
	wanted, refused := read()
	if refused != nil {
		return answer{}, refused
	}
	inputs, refused := matchInputs(used, wanted.inputs)
	if refused != nil {
		return answer{}, refused
	}
	for i, name := range wanted.outputs {
		// Each output is written once, so that the size of an answer has a limit.
		if slices.Contains(wanted.outputs[:i], name) {
			return answer{}, badRequest("inference output '%s' is requested twice", name)
		}
		if !slices.ContainsFunc(used.session.Outputs(), func(i tensor.Info) bool { return i.Name == name }) {
			return answer{}, badRequest("unexpected inference output '%s' for model '%s': it has %s", name, used.name, listNames(used.session.Outputs()))
		}
	}
	release, refused := s.admitRequest(ctx)
	if refused != nil {
		return answer{}, refused
	}
	defer release()
	began := time.Now()
	outputs, err := used.session.Run(ctx, inputs)
	s.metrics.inference.WithLabelValues(used.name).Observe(time.Since(began).Seconds())
	switch {
	case err != nil && ctx.Err() != nil:
		return answer{}, interruptionError(context.Cause(ctx))
	case err != nil:
		// Most errors of a run are about values that the model does not take.
		return answer{}, badRequest("model '%s' cannot run with these inputs: %v", used.name, err)
	}
	result = answer{model: used.name, version: used.version, id: wanted.id, outputs: outputs}
	if len(wanted.outputs) > 0 {
		result.outputs = nil
		for _, name := range wanted.outputs {
			at := slices.IndexFunc(outputs, func(t tensor.Tensor) bool { return t.Name == name })
			result.outputs = append(result.outputs, outputs[at])
		}
	}
	return result, nil
}

// matchInputs returns the inputs in the order of the model.
func matchInputs(m *model, given []tensor.Tensor) ([]tensor.Tensor, *callError) {
	infos := m.session.Inputs()
	if len(given) != len(infos) {
		return nil, badRequest("model '%s' has %d inputs (%s), and the request has %d", m.name, len(infos), listNames(infos), len(given))
	}
	size := 0
	inputs := make([]tensor.Tensor, 0, len(infos))
	for _, info := range infos {
		at := slices.IndexFunc(given, func(t tensor.Tensor) bool { return t.Name == info.Name })
		if at < 0 {
			return nil, badRequest("input '%s' is missing: model '%s' has the inputs %s", info.Name, m.name, listNames(infos))
		}
		err := info.Fits(given[at])
		if err == nil {
			err = given[at].Check()
		}
		if err != nil {
			return nil, badRequest("input '%s': %v", info.Name, err)
		}
		size += len(given[at].Data)
		inputs = append(inputs, given[at])
	}
	if free := int64(m.mib)<<20 - m.size; int64(size) > free {
		return nil, badRequest("the inputs have %d bytes, and model '%s' has %d bytes of memory for a request: raise memoryMib in its model.json", size, m.name, free)
	}
	return inputs, nil
}

func listNames(infos []tensor.Info) string {
	names := make([]string, 0, len(infos))
	for _, info := range infos {
		names = append(names, "'"+info.Name+"'")
	}
	return strings.Join(names, ", ")
}

// admitRequest waits for a slot. The caller must call release once.
func (s *Server) admitRequest(ctx context.Context) (release func(), refused *callError) {
	began := time.Now()
	if !s.slots.TryAcquire(1) {
		if s.waiting.Add(1) > int64(s.cfg.Queue) {
			s.waiting.Add(-1)
			return nil, &callError{status: http.StatusTooManyRequests, message: "the server is at capacity and its queue is full: try again later"}
		}
		err := s.slots.Acquire(ctx, 1)
		s.waiting.Add(-1)
		if err != nil {
			return nil, interruptionError(context.Cause(ctx))
		}
	}
	s.metrics.queueTime.Observe(time.Since(began).Seconds())
	s.running.Add(1)
	return func() {
		s.running.Add(-1)
		s.slots.Release(1)
	}, nil
}

// interruptionError returns the answer for a request that did not finish.
func interruptionError(cause error) *callError {
	switch {
	case errors.Is(cause, errRequestTimeout):
		return &callError{status: http.StatusGatewayTimeout, message: cause.Error()}
	case errors.Is(cause, context.Canceled):
		return &callError{status: statusClosedRequest, message: "the client closed the request"}
	}
	return &callError{status: http.StatusServiceUnavailable, message: cause.Error()}
}
