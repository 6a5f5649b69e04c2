package onnxserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// modelState is a model's state, in the words of the repository extension.
type modelState string

const (
	modelLoading     modelState = "LOADING"
	modelReady       modelState = "READY"
	modelUnloading   modelState = "UNLOADING"
	modelUnavailable modelState = "UNAVAILABLE"
)

var errNotLoaded = errors.New("the model is not loaded")

// model is a model that was loaded, or that failed to load. The set's lock guards it, except the session, which is safe
// for concurrent use.
type model struct {
	modelSpec
	state modelState
	// reason is why the model is unavailable.
	reason  string
	session Session
	// running counts the requests that use the session.
	running int
	// settled is closed when the state is neither LOADING nor UNLOADING.
	settled chan struct{}
	// idle is closed when an unloading model has no request left.
	idle chan struct{}
}

// modelSet has the models of a server.
type modelSet struct {
	// limitMiB is the memory of all models. 0 means no limit.
	limitMiB int
	open     func(spec modelSpec) (Session, error)
	// work has the loads and unloads, which go on when their callers leave.
	work sync.WaitGroup

	mu      sync.Mutex
	models  map[string]*model
	usedMiB int
	// closed means that no load may begin.
	closed bool
}

// loadModel loads a model, or waits for the load or unload that runs. A model with a changed file is unloaded first. The
// result is nil if the model is ready with the given file.
func (s *modelSet) loadModel(ctx context.Context, spec modelSpec) error {
	for {
		m, wait, err := s.beginLoad(spec)
		if err != nil || m == nil {
			return err
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		s.mu.Lock()
		state, reason := m.state, m.reason
		s.mu.Unlock()
		if state == modelUnavailable && reason != "" {
			return errors.New(reason)
		}
	}
}

// beginLoad begins a load, or the unload before it. It returns the model to wait for, or nil if the model is ready.
func (s *modelSet) beginLoad(spec modelSpec) (*model, <-chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, nil, errors.New("the server is stopping")
	}
	if m := s.models[spec.name]; m != nil {
		switch m.state {
		case modelReady:
			if m.modelSpec == spec {
				return nil, nil, nil
			}
			s.beginUnload(m)
			return m, m.settled, nil
		case modelLoading, modelUnloading:
			return m, m.settled, nil
		case modelUnavailable:
		}
	}
	m := &model{modelSpec: spec, state: modelLoading, settled: make(chan struct{})}
	if s.limitMiB > 0 && spec.mib > s.limitMiB-s.usedMiB {
		m.state, m.reason, m.mib = modelUnavailable, fmt.Sprintf("it needs %d MiB of memory, and %d MiB of %d MiB are free", spec.mib, s.limitMiB-s.usedMiB, s.limitMiB), 0
		close(m.settled)
		s.models[spec.name] = m
		return nil, nil, errors.New(m.reason)
	}
	s.usedMiB += spec.mib
	s.models[spec.name] = m
	s.work.Go(func() { s.finishLoad(m) })
	return m, m.settled, nil
}

func (s *modelSet) finishLoad(m *model) {
	session, err := s.open(m.modelSpec)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.usedMiB -= m.mib
		m.state, m.reason, m.mib = modelUnavailable, err.Error(), 0
	} else {
		m.state, m.session = modelReady, session
	}
	close(m.settled)
}

// unloadModel refuses new requests for a model, and waits until its requests have ended and its memory is free.
func (s *modelSet) unloadModel(ctx context.Context, name string) error {
	s.mu.Lock()
	m := s.models[name]
	if m == nil || m.state != modelReady && m.state != modelUnloading {
		s.mu.Unlock()
		return errNotLoaded
	}
	if m.state == modelReady {
		s.beginUnload(m)
	}
	settled := m.settled
	s.mu.Unlock()
	select {
	case <-settled:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// beginUnload begins the unload of a ready model. The caller holds the lock.
func (s *modelSet) beginUnload(m *model) {
	m.state, m.settled, m.idle = modelUnloading, make(chan struct{}), make(chan struct{})
	if m.running == 0 {
		close(m.idle)
	}
	s.work.Go(func() {
		<-m.idle // every request ends within RequestTimeout
		err := m.session.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.usedMiB -= m.mib
		m.state, m.session, m.mib = modelUnavailable, nil, 0
		if err != nil {
			m.reason = "its memory could not be freed: " + err.Error()
		} else {
			delete(s.models, m.name)
		}
		close(m.settled)
	})
}

// useModel counts a request for a ready model. An empty version means any. The caller must call release once.
func (s *modelSet) useModel(name, version string) (used *model, release func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.models[name]
	if m == nil || m.state != modelReady || version != "" && version != m.version {
		return nil, nil, false
	}
	m.running++
	return m, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if m.running--; m.running == 0 && m.state == modelUnloading {
			close(m.idle)
		}
	}, true
}

// listed is a model without its session.
type listed struct {
	modelSpec
	state  modelState
	reason string
}

// listModels returns the models by name.
func (s *modelSet) listModels() []listed {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []listed
	for _, m := range s.models {
		all = append(all, listed{m.modelSpec, m.state, m.reason})
	}
	slices.SortFunc(all, func(a, b listed) int { return cmp.Compare(a.name, b.name) })
	return all
}

// closeAll unloads all models, and waits for all loads and unloads.
func (s *modelSet) closeAll() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.work.Wait() // a model that is loading is ready after this
	s.mu.Lock()
	for _, m := range s.models {
		if m.state == modelReady {
			s.beginUnload(m)
		}
	}
	s.mu.Unlock()
	s.work.Wait()
}
