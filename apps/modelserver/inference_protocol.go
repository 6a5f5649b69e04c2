package modelserver

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// inferenceAPI has the calls of the Open Inference Protocol.
type inferenceAPI struct{ *Server }

// inferenceRoutes adds the Open Inference Protocol, version 2, over HTTP, with Triton's repository extension.
// Models are loaded only on request, as with Triton's --model-control-mode=explicit.
func inferenceRoutes(server *Server, route func(method, path string, handle http.HandlerFunc)) {
	s := inferenceAPI{server}
	route("GET", "/v2", s.handleServerMetadata)
	route("GET", "/v2/health/live", func(w http.ResponseWriter, r *http.Request) { s.answerHealth(w, r, true) })
	route("GET", "/v2/health/ready", func(w http.ResponseWriter, r *http.Request) { s.answerHealth(w, r, false) })
	for _, model := range []string{"/v2/models/{model}", "/v2/models/{model}/versions/{version}"} {
		route("GET", model, s.handleModelMetadata)
		route("GET", model+"/ready", s.handleModelReady)
		route("POST", model+"/infer", s.handleModelInfer)
	}
	route("POST", "/v2/repository/index", s.handleRepositoryIndex)
	route("POST", "/v2/repository/models/{model}/load", s.handleRepositoryLoad)
	route("POST", "/v2/repository/models/{model}/unload", s.handleRepositoryUnload)
}

// writeInferenceError writes an error in the form of the Open Inference Protocol.
func writeInferenceError(w http.ResponseWriter, e *apiError) {
	if e.retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(max(1, e.retryAfter.Round(time.Second)/time.Second))))
	}
	writeJSON(w, e.status, map[string]string{"error": e.message})
}

func unknownModel(name, version string) *apiError {
	message := fmt.Sprintf("Request for unknown model: '%s' is not found", name)
	if version != "" {
		message = fmt.Sprintf("Request for unknown model: '%s' version %s is not found", name, version)
	}
	return &apiError{status: http.StatusNotFound, message: message}
}

// answerHealth answers whether the server is live or ready. It is also live while it loads and drains.
func (s inferenceAPI) answerHealth(w http.ResponseWriter, r *http.Request, live bool) {
	if s.healthStatus(r) != healthy && !live {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusOK)
}

func (s inferenceAPI) handleServerMetadata(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]any{
		"name": "modelserver", "version": s.cfg.VersionLabel, "extensions": []string{"model_repository"},
	})
}

// tensorMetadata describes an input or an output of a model.
type tensorMetadata struct {
	Name     string `json:"name"`
	Datatype string `json:"datatype"`
	Shape    []int  `json:"shape"`
}

// handleModelMetadata describes a loaded model. The echo model accepts all tensors, and describes one as an example.
func (s inferenceAPI) handleModelMetadata(w http.ResponseWriter, r *http.Request) {
	model, ok := s.models.readyModel(r.PathValue("model"))
	if version := r.PathValue("version"); !ok || version != "" && version != model.version {
		writeInferenceError(w, unknownModel(r.PathValue("model"), version))
		return
	}
	text := []tensorMetadata{{Name: "text", Datatype: "BYTES", Shape: []int{-1}}}
	writeJSON(w, http.StatusOK, map[string]any{
		"name": model.name, "versions": []string{model.version}, "platform": "echo", "inputs": text, "outputs": text,
	})
}

func (s inferenceAPI) handleModelReady(w http.ResponseWriter, r *http.Request) {
	if s.healthStatus(r) == "loading" {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	name, version := r.PathValue("model"), r.PathValue("version")
	model, ok := s.models.readyModel(name)
	faults, _, _ := s.faults.currentFaults()
	switch {
	case !ok, version != "" && version != model.version:
		writeInferenceError(w, unknownModel(name, version))
	case matchesPattern(faults.DenyReady, name):
		writeInferenceError(w, &apiError{status: http.StatusBadRequest, message: fmt.Sprintf("model '%s' is not ready (injected fault)", name)})
	default:
		w.WriteHeader(http.StatusOK)
	}
}

// inferRequest is a request for inference. Tensors with binary data are not supported.
type inferRequest struct {
	ID      string        `json:"id"`
	Inputs  []inferTensor `json:"inputs"`
	Outputs []struct {
		Name string `json:"name"`
	} `json:"outputs"`
}

type inferTensor struct {
	Name     string          `json:"name"`
	Shape    []int64         `json:"shape"`
	Datatype string          `json:"datatype"`
	Data     json.RawMessage `json:"data"`
}

type inferResponse struct {
	ModelName    string        `json:"model_name"`
	ModelVersion string        `json:"model_version"`
	ID           string        `json:"id,omitempty"`
	Outputs      []inferTensor `json:"outputs"`
}

// handleModelInfer answers each input with an output of the same name and data.
func (s inferenceAPI) handleModelInfer(w http.ResponseWriter, r *http.Request) {
	arrived := time.Now()
	code := http.StatusOK
	defer func() { s.metrics.recordStatus(r.URL.Path, code) }()
	refuse := func(e *apiError) {
		code = e.status
		writeInferenceError(w, e)
	}
	ctx, cancel := context.WithTimeoutCause(r.Context(), s.cfg.RequestTimeout, errRequestTimeout)
	defer cancel()
	if !s.isReady() {
		refuse(&apiError{status: http.StatusServiceUnavailable, message: "the server is loading", retryAfter: time.Second})
		return
	}
	model, leave, ok := s.models.useModel(r.PathValue("model"), r.PathValue("version"))
	if !ok {
		refuse(unknownModel(r.PathValue("model"), r.PathValue("version")))
		return
	}
	defer leave()
	answer, problem := s.planInference(w, r, model)
	if problem != nil {
		refuse(problem)
		return
	}
	if s.blockWhileHung(ctx) {
		code = statusClosedRequest
		panic(http.ErrAbortHandler)
	}
	release, _, refused := s.admitRequest(ctx, arrived)
	if refused != nil {
		refuse(refused)
		return
	}
	defer release()
	faults, _, _ := s.faults.currentFaults()
	if matchesPattern(faults.FalseReady, model.name) {
		refuse(&apiError{status: http.StatusInternalServerError, message: fmt.Sprintf("model '%s' fails (injected fault)", model.name)})
		return
	}
	takes := time.Duration(float64(s.cfg.TimeToFirstToken) * faults.SlowFactor)
	if err := sleepUntil(ctx, time.Now().Add(takes)); err != nil {
		refuse(interruptionError(err))
		return
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout))
	writeJSON(w, http.StatusOK, answer)
}

// planInference reads a request and returns its answer.
func (s inferenceAPI) planInference(w http.ResponseWriter, r *http.Request, model hostedModel) (inferResponse, *apiError) {
	answer := inferResponse{ModelName: model.name, ModelVersion: model.version}
	if r.Header.Get("Inference-Header-Content-Length") != "" {
		return answer, badRequest("", "tensors with binary data are not supported: send data as JSON, without Inference-Header-Content-Length")
	}
	var req inferRequest
	if problem := decodeBody(w, r, s.cfg.MaxBodyBytes, &req); problem != nil {
		return answer, problem
	}
	if len(req.Inputs) == 0 {
		return answer, badRequest("inputs", "inputs is missing: send at least one tensor")
	}
	for _, input := range req.Inputs {
		if err := input.checkData(); err != nil {
			return answer, badRequest("inputs", "input '%s': %v", input.Name, err)
		}
	}
	answer.ID, answer.Outputs = req.ID, req.Inputs
	if len(req.Outputs) == 0 {
		return answer, nil
	}
	answer.Outputs = nil
	for _, output := range req.Outputs {
		i := slices.IndexFunc(req.Inputs, func(t inferTensor) bool { return t.Name == output.Name })
		if i < 0 {
			return answer, badRequest("outputs", "unexpected inference output '%s' for model '%s': outputs have the names of inputs", output.Name, model.name)
		}
		answer.Outputs = append(answer.Outputs, req.Inputs[i])
	}
	return answer, nil
}

// datatypes are the protocol's types of tensors.
var datatypes = []string{
	"BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "BF16", "FP32", "FP64", "BYTES",
}

// checkData compares the data of a tensor with its shape and type.
func (t inferTensor) checkData() error {
	switch {
	case t.Name == "":
		return errors.New("name is missing")
	case !slices.Contains(datatypes, t.Datatype):
		return fmt.Errorf("datatype must be one of %s, not %q", strings.Join(datatypes, ", "), t.Datatype)
	}
	wanted := int64(1)
	for _, n := range t.Shape {
		// No body has this number of elements.
		if n < 0 || n > 1<<31 || wanted*n > 1<<31 {
			return fmt.Errorf("shape must not have %d", n)
		}
		wanted *= n
	}
	got := int64(0)
	d := json.NewDecoder(bytes.NewReader(t.Data))
	d.UseNumber()
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("data is not a list: %w", err)
		}
		if _, nested := token.(json.Delim); nested {
			if token == json.Delim('{') {
				return errors.New("data must be a list of values")
			}
			continue
		}
		if !fitsDatatype(token, t.Datatype) {
			return fmt.Errorf("data has %v, which is not of type %s", token, t.Datatype)
		}
		got++
	}
	if got != wanted {
		return fmt.Errorf("data has %d values, but its shape has %d", got, wanted)
	}
	return nil
}

func fitsDatatype(value json.Token, datatype string) bool {
	switch value.(type) {
	case string:
		return datatype == "BYTES"
	case bool:
		return datatype == "BOOL"
	case json.Number:
		return datatype != "BYTES" && datatype != "BOOL"
	}
	return false
}

// modelFile is the file model.json in a model's folder. All fields are optional.
type modelFile struct {
	// MemoryMiB is the memory of the loaded model. Default: the size of the files.
	MemoryMiB *int `json:"memoryMib"`
	// LoadTime is the additional time that loading this model takes.
	LoadTime Duration `json:"loadTime"`
}

// readModel reads a model's folder in the repository. The version is the highest number of a folder in it, or 1.
func (s inferenceAPI) readModel(name string) (hostedModel, time.Duration, error) {
	if name != filepath.Base(name) || !filepath.IsLocal(name) || name == "." {
		return hostedModel{}, 0, fmt.Errorf("has a name that is not the name of a folder: %q", name)
	}
	folder := filepath.Join(s.cfg.ModelRepository, name)
	entries, err := os.ReadDir(folder)
	if err != nil {
		return hostedModel{}, 0, errors.New("is not in the repository")
	}
	version := 1
	for _, entry := range entries {
		if n, err := strconv.Atoi(entry.Name()); err == nil && entry.IsDir() {
			version = max(version, n)
		}
	}
	var file modelFile
	data, err := os.ReadFile(filepath.Join(folder, "model.json"))
	if err == nil {
		err = decodeStrict(data, &file)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return hostedModel{}, 0, fmt.Errorf("has a model.json that cannot be read: %w", err)
	}
	model := hostedModel{name: name, version: strconv.Itoa(version), source: folder}
	if file.MemoryMiB != nil {
		model.mib = *file.MemoryMiB
	} else if model.mib, err = folderMiB(folder); err != nil {
		return hostedModel{}, 0, err
	}
	if model.mib < 0 || model.mib > maxMemoryMiB || file.LoadTime < 0 {
		return hostedModel{}, 0, fmt.Errorf("has a model.json with memoryMib or loadTime out of range: memoryMib must be 0 to %d, and loadTime must not be negative", maxMemoryMiB)
	}
	return model, time.Duration(file.LoadTime), nil
}

// indexEntry is a model in the answer to the repository index.
type indexEntry struct {
	Name    string     `json:"name"`
	Version string     `json:"version,omitempty"`
	State   modelState `json:"state"`
	Reason  string     `json:"reason"`
}

// handleRepositoryIndex lists the models of the repository, and all models that a client tried to load.
func (s inferenceAPI) handleRepositoryIndex(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Ready bool `json:"ready"`
	}
	if r.ContentLength != 0 {
		if problem := decodeBody(w, r, s.cfg.MaxBodyBytes, &body); problem != nil {
			writeInferenceError(w, problem)
			return
		}
	}
	index := []indexEntry{}
	held := map[string]bool{}
	for _, m := range s.models.list() {
		held[m.name] = true
		index = append(index, indexEntry{Name: m.name, Version: m.version, State: m.state, Reason: m.reason})
	}
	folders, err := os.ReadDir(s.cfg.ModelRepository)
	if err != nil {
		writeInferenceError(w, &apiError{status: http.StatusInternalServerError, message: fmt.Sprintf("cannot read the model repository: %v", err)})
		return
	}
	for _, folder := range folders {
		if folder.IsDir() && !held[folder.Name()] {
			index = append(index, indexEntry{Name: folder.Name(), State: modelUnavailable})
		}
	}
	if body.Ready {
		index = slices.DeleteFunc(index, func(e indexEntry) bool { return e.State != modelReady })
	}
	slices.SortFunc(index, func(a, b indexEntry) int { return cmp.Compare(a.Name, b.Name) })
	writeJSON(w, http.StatusOK, index)
}

func (s inferenceAPI) handleRepositoryLoad(w http.ResponseWriter, r *http.Request) {
	// A body may have parameters, which the echo model does not need. The body is read, because net/http does not notice
	// a disconnect before the end of the body.
	_, _ = io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, s.cfg.MaxBodyBytes))
	if !s.isReady() {
		writeInferenceError(w, &apiError{status: http.StatusServiceUnavailable, message: "the server is loading", retryAfter: time.Second})
		return
	}
	name := r.PathValue("model")
	model, takes, err := s.readModel(name)
	if err == nil {
		if loaded, ok := s.models.readyModel(name); ok && loaded.version != model.version {
			// Memory has only one copy of a model. An error means that another request has unloaded it.
			_ = s.models.unloadModel(r.Context(), name)
		}
		err = s.load(r.Context(), s.models, model, takes)
	}
	switch {
	case errors.Is(err, context.Canceled):
		panic(http.ErrAbortHandler) // The client or the server is gone.
	case err != nil && !errors.Is(err, errModelLoaded):
		writeInferenceError(w, &apiError{status: http.StatusBadRequest, message: fmt.Sprintf("failed to load '%s': it %v", name, err)})
	default:
		w.WriteHeader(http.StatusOK)
	}
}

// handleRepositoryUnload unloads a model. As in Triton, unloading a model that is not loaded is not an error.
func (s inferenceAPI) handleRepositoryUnload(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, s.cfg.MaxBodyBytes))
	if s.models.unloadModel(r.Context(), r.PathValue("model")) == nil {
		s.log.Info("unloaded", "model", r.PathValue("model"))
	}
	w.WriteHeader(http.StatusOK)
}
