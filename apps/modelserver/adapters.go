package modelserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
)

// adapterAPI has vLLM's calls for adapters.
type adapterAPI struct{ *Server }

// sglangAdapterAPI has SGLang's calls for adapters.
type sglangAdapterAPI struct{ *Server }

// adapterRoutes adds vLLM's calls that load and unload LoRA adapters
// (vllm/entrypoints/serve/lora/api_router.py). A server without adapter slots does not have these calls.
func adapterRoutes(server *Server, route func(method, path string, handle http.HandlerFunc)) {
	if server.cfg.AdapterSlots == 0 {
		return
	}
	s := adapterAPI{server}
	route("POST", "/v1/load_lora_adapter", s.handleLoadAdapter)
	route("POST", "/v1/unload_lora_adapter", s.handleUnloadAdapter)
}

func (s adapterAPI) handleLoadAdapter(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Name    string `json:"lora_name"`
		Path    string `json:"lora_path"`
		InPlace bool   `json:"load_inplace"`
	}
	if problem := decodeBody(w, r, s.cfg.MaxBodyBytes, &body); problem != nil {
		s.writeError(w, problem)
		return
	}
	if body.Name == "" || body.Path == "" {
		s.writeError(w, badRequest("", "Both 'lora_name' and 'lora_path' must be provided."))
		return
	}
	if _, loaded := s.adapters.readyModel(body.Name); loaded && body.InPlace {
		if err := s.adapters.unloadModel(r.Context(), body.Name); err != nil && !errors.Is(err, errModelNotLoaded) {
			s.writeError(w, badRequest("", "%v", err))
			return
		}
	}
	mib := s.cfg.AdapterMemoryMiB
	if filepath.IsAbs(body.Path) {
		var err error
		if mib, err = folderMiB(body.Path); err != nil {
			s.writeError(w, &apiError{
				status: http.StatusNotFound, kind: "not_found_error", code: "adapter_not_found",
				message: fmt.Sprintf("Loading lora %s failed: No adapter found for %s", body.Name, body.Path),
			})
			return
		}
	}
	err := errModelLoaded
	// An adapter must not have a name of the model.
	if body.Name != s.cfg.Model && !slices.Contains(s.cfg.Engine.Aliases, body.Name) {
		err = s.load(r.Context(), s.adapters, hostedModel{name: body.Name, version: "1", source: body.Path, mib: mib}, 0)
	}
	switch {
	case errors.Is(err, errModelLoaded):
		s.writeError(w, badRequest("", "The lora adapter '%s' has already been loaded. If you want to load the adapter in place, set 'load_inplace' to True.", body.Name))
	case errors.Is(err, context.Canceled):
		panic(http.ErrAbortHandler) // The client or the server is gone.
	case err != nil:
		s.writeError(w, badRequest("", "Loading lora %s failed: it %v", body.Name, err))
	default:
		writeTextf(w, "Success: LoRA adapter '%s' added successfully.", body.Name)
	}
}

func (s adapterAPI) handleUnloadAdapter(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Name string `json:"lora_name"`
	}
	if problem := decodeBody(w, r, s.cfg.MaxBodyBytes, &body); problem != nil {
		s.writeError(w, problem)
		return
	}
	if body.Name == "" {
		s.writeError(w, badRequest("", "'lora_name' needs to be provided to unload a LoRA adapter."))
		return
	}
	if s.adapters.unloadModel(r.Context(), body.Name) != nil {
		s.writeError(w, &apiError{
			status: http.StatusNotFound, kind: "not_found_error", code: "adapter_not_found",
			message: fmt.Sprintf("The lora adapter '%s' cannot be found.", body.Name),
		})
		return
	}
	writeTextf(w, "Success: LoRA adapter '%s' removed successfully.", body.Name)
}

func writeTextf(w http.ResponseWriter, format string, args ...any) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = fmt.Fprintf(w, format, args...)
}

// sglangAdapterRoutes adds SGLang's calls that load and unload LoRA adapters (entrypoints/http_server.py). As in SGLang,
// a server without --enable-lora has the calls and refuses them.
func sglangAdapterRoutes(server *Server, route func(method, path string, handle http.HandlerFunc)) {
	s := sglangAdapterAPI{server}
	route("POST", "/load_lora_adapter", s.handleLoadAdapter)
	route("POST", "/unload_lora_adapter", s.handleUnloadAdapter)
}

func (s sglangAdapterAPI) handleLoadAdapter(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Name   string `json:"lora_name"`
		Path   string `json:"lora_path"`
		Pinned bool   `json:"pinned"`
	}
	if problem := decodeBody(w, r, s.cfg.MaxBodyBytes, &body); problem != nil {
		s.writeError(w, problem)
		return
	}
	mib := s.cfg.AdapterMemoryMiB
	var err error
	switch {
	case s.cfg.AdapterSlots == 0:
		err = errors.New("LoRA is not enabled. Please set `--enable-lora` to enable LoRA.") //nolint:revive // the words of SGLang
	case body.Name == "" || body.Path == "":
		err = errors.New("lora_name and lora_path must be provided")
	case filepath.IsAbs(body.Path):
		mib, err = folderMiB(body.Path)
	}
	if err == nil {
		err = s.load(r.Context(), s.adapters, hostedModel{name: body.Name, version: "1", source: body.Path, mib: mib}, 0)
	}
	switch {
	case errors.Is(err, errModelLoaded):
		err = fmt.Errorf("LoRA with name %s already exists", body.Name)
	case errors.Is(err, context.Canceled):
		panic(http.ErrAbortHandler) // The client or the server is gone.
	}
	s.writeResult(w, err)
}

func (s sglangAdapterAPI) handleUnloadAdapter(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Name string `json:"lora_name"`
	}
	if problem := decodeBody(w, r, s.cfg.MaxBodyBytes, &body); problem != nil {
		s.writeError(w, problem)
		return
	}
	err := s.adapters.unloadModel(r.Context(), body.Name)
	if err != nil {
		err = fmt.Errorf("LoRA with name %s does not exist", body.Name)
	}
	s.writeResult(w, err)
}

// writeResult writes the answer of SGLang's calls for adapters.
func (s sglangAdapterAPI) writeResult(w http.ResponseWriter, err error) {
	status, text := http.StatusOK, ""
	if err != nil {
		status, text = http.StatusBadRequest, err.Error()
	}
	loaded := map[string]string{}
	for _, a := range s.adapters.list() {
		if a.state == modelReady {
			loaded[a.name] = a.source
		}
	}
	writeJSON(w, status, map[string]any{"success": err == nil, "error_message": text, "loaded_adapters": loaded})
}

// folderMiB returns the size of the files in a folder, rounded up to MiB.
func folderMiB(folder string) (int, error) {
	var size int64
	err := filepath.WalkDir(folder, func(_ string, entry os.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			size += info.Size()
		}
		return err
	})
	return int((size + 1<<20 - 1) >> 20), err
}
