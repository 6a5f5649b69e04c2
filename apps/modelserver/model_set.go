package modelserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"sync"
	"time"
)

// modelState is a model's state, in the words of the Open Inference Protocol's repository extension.
type modelState string

const (
	modelLoading     modelState = "LOADING"
	modelReady       modelState = "READY"
	modelUnloading   modelState = "UNLOADING"
	modelUnavailable modelState = "UNAVAILABLE"
)

var (
	errModelLoaded    = errors.New("is loaded already")
	errModelNotLoaded = errors.New("is not loaded")
)

// memoryBudget is the memory for loaded models and adapters. A limit of 0 means no limit.
type memoryBudget struct {
	mu          sync.Mutex
	limit, used int
}

// reserveMemory takes mib MiB, or returns an error with the free memory.
func (b *memoryBudget) reserveMemory(mib int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.limit > 0 && mib > b.limit-b.used {
		return fmt.Errorf("needs %d MiB of memory, and %d of %d MiB are free", mib, b.limit-b.used, b.limit)
	}
	b.used += mib
	return nil
}

func (b *memoryBudget) release(mib int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= mib
}

func (b *memoryBudget) usedMiB() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// hostedModel is a model that was loaded on request, or that failed to load.
type hostedModel struct {
	name, version string
	source        string
	state         modelState
	// reason is the reason why the model is unavailable.
	reason string
	mib    int
	memory [][]byte
	// running counts the requests that use the model.
	running int
	// settled is closed when the state is neither LOADING nor UNLOADING. It must be read with the lock held, because an
	// unload replaces it.
	settled chan struct{}
	// idle is closed when an unloading model has no request left.
	idle chan struct{}
}

// modelSet has the models, or the adapters, of a server. A model's memory is reserved before the model loads, and
// returned after the memory is freed, so that the sum never exceeds the budget.
type modelSet struct {
	budget *memoryBudget
	// slots is the maximum number of loaded models. 0 means no limit.
	slots int

	mu     sync.Mutex
	models map[string]*hostedModel
}

func newModelSet(budget *memoryBudget, slots int) *modelSet {
	return &modelSet{budget: budget, slots: slots, models: map[string]*hostedModel{}}
}

// load calls fill for a model that is not loaded, and keeps its memory. A second caller waits for the result of the
// first caller. load returns errModelLoaded for a version that is already loaded.
func (s *modelSet) load(ctx context.Context, wanted hostedModel, fill func() error) error {
	for {
		model, settled, err := s.begin(wanted)
		switch {
		case err != nil:
			return err
		case settled == nil:
			return s.finishLoad(model, fill())
		}
		select {
		case <-settled:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		s.mu.Lock()
		state, reason := model.state, model.reason
		s.mu.Unlock()
		if state == modelUnavailable && reason != "" {
			return errors.New(reason)
		}
	}
}

// begin returns a new model that the caller must load, or the model that is being loaded or unloaded. settled is closed
// at the end of that load or unload. It is nil for a new model.
func (s *modelSet) begin(wanted hostedModel) (model *hostedModel, settled <-chan struct{}, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	held := 0
	for name, m := range s.models {
		if m.state == modelUnavailable {
			continue
		}
		if name == wanted.name {
			if m.state == modelReady {
				return nil, nil, errModelLoaded
			}
			return m, m.settled, nil
		}
		held++
	}
	model = &hostedModel{name: wanted.name, version: wanted.version, source: wanted.source, mib: wanted.mib, state: modelLoading, settled: make(chan struct{})}
	if s.slots > 0 && held >= s.slots {
		err = fmt.Errorf("finds no free slot: %d of %d are taken", held, s.slots)
	} else {
		err = s.budget.reserveMemory(wanted.mib)
	}
	if err != nil {
		model.state, model.reason, model.mib = modelUnavailable, err.Error(), 0
		close(model.settled)
		s.models[wanted.name] = model
		return nil, nil, err
	}
	s.models[wanted.name] = model
	return model, nil, nil
}

func (s *modelSet) finishLoad(model *hostedModel, err error) error {
	var memory [][]byte
	if err == nil {
		memory = resizeHog(nil, model.mib)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		model.state, model.reason = modelUnavailable, err.Error()
		s.budget.release(model.mib)
		model.mib = 0
	} else {
		model.state, model.memory = modelReady, memory
	}
	close(model.settled)
	return err
}

// unloadModel refuses new requests for a model, waits for requests in flight until ctx ends, and frees the memory. Requests
// that outlast ctx are not cut. The memory is freed, because the echo model does not read it.
func (s *modelSet) unloadModel(ctx context.Context, name string) error {
	s.mu.Lock()
	model := s.models[name]
	if model == nil || model.state != modelReady {
		s.mu.Unlock()
		return errModelNotLoaded
	}
	model.state, model.settled, model.idle = modelUnloading, make(chan struct{}), make(chan struct{})
	if model.running == 0 {
		close(model.idle)
	}
	s.mu.Unlock()
	select {
	case <-model.idle:
	case <-ctx.Done():
	}
	resizeHog(model.memory, 0)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.budget.release(model.mib)
	model.state, model.memory, model.mib = modelUnavailable, nil, 0
	model.reason = ""
	delete(s.models, name)
	close(model.settled)
	return nil
}

// useModel counts a request for a ready model. An empty version means any. The caller must call release once.
func (s *modelSet) useModel(name, version string) (model hostedModel, release func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.models[name]
	if m == nil || m.state != modelReady || version != "" && version != m.version {
		return hostedModel{}, nil, false
	}
	m.running++
	return hostedModel{name: m.name, version: m.version}, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if m.running--; m.running == 0 && m.state == modelUnloading {
			close(m.idle)
		}
	}, true
}

// list returns the models by name, without their memory.
func (s *modelSet) list() []hostedModel {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []hostedModel
	for _, m := range s.models {
		all = append(all, hostedModel{name: m.name, version: m.version, source: m.source, state: m.state, reason: m.reason, mib: m.mib})
	}
	slices.SortFunc(all, func(a, b hostedModel) int { return cmp.Compare(a.name, b.name) })
	return all
}

// readyModel returns a model that is loaded.
func (s *modelSet) readyModel(name string) (hostedModel, bool) {
	for _, m := range s.list() {
		if m.name == name && m.state == modelReady {
			return m, true
		}
	}
	return hostedModel{}, false
}

// load loads a model or an adapter, with the faults of loads. As in Triton and vLLM, it continues when the client
// disconnects. It ends with the server.
func (s *Server) load(ctx context.Context, set *modelSet, wanted hostedModel, takes time.Duration) error {
	result := make(chan error, 1)
	go func() {
		err := set.load(s.lifetime, wanted, func() error { return s.sufferLoad(wanted.name, takes) })
		if err == nil {
			s.log.Info("loaded", "model", wanted.name, "version", wanted.version, "memory_mib", wanted.mib)
		}
		result <- err
	}()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// sufferLoad waits for the time of a load, and injects its faults.
func (s *Server) sufferLoad(name string, takes time.Duration) error {
	for {
		faults, _, changed := s.faults.currentFaults()
		if matchesPattern(faults.CrashLoad, name) {
			s.crashWith(&ExitError{Code: faults.ExitCode, Reason: "crashed while it loaded " + name})
			<-s.lifetime.Done()
			return context.Cause(s.lifetime)
		}
		if !matchesPattern(faults.HangLoad, name) {
			break
		}
		select {
		case <-changed:
		case <-s.lifetime.Done():
			return context.Cause(s.lifetime)
		}
	}
	faults, _, _ := s.faults.currentFaults()
	if err := sleepUntil(s.lifetime, time.Now().Add(s.cfg.ModelLoadTime+takes+time.Duration(faults.SlowLoad))); err != nil {
		return err
	}
	if faults, _, _ = s.faults.currentFaults(); matchesPattern(faults.FailLoad, name) {
		return errors.New("fails to load (injected fault)")
	}
	return nil
}

// crashWith makes Run return err.
func (s *Server) crashWith(err *ExitError) {
	select {
	case s.crashes <- err:
	default: // an earlier crash ends the server
	}
}

// matchesPattern reports whether a name matches a fault's pattern. An empty pattern matches nothing.
func matchesPattern(pattern, name string) bool {
	ok, err := path.Match(pattern, name)
	return pattern != "" && ok && err == nil
}
