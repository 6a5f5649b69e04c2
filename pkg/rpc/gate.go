package rpc

import (
	"context"
	"net/http"
	"net/netip"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/pkg/conns"
)

// Call is what a Gate knows: all but the message.
type Call struct {
	Procedure string
	Header    http.Header
	// Client is where the call comes from; the zero Addr where there is no network.
	Client netip.Addr
	// InLoop: it is a stream of a connection that goes on to open streams that are refused.
	InLoop bool
}

// Admission is what a Gate found out.
type Admission struct {
	// Caller is the same text for all calls of one caller, who shares the server's memory
	// with others. A Gate that refuses a known caller returns it with the error.
	Caller string
	// With puts the caller's identity into the context of the handler. nil: nothing.
	With func(context.Context) context.Context
}

// Gate decides who calls, and whether they may, before one byte of the body is read: who
// does not get in costs no memory.
type Gate func(ctx context.Context, call Call) (Admission, error)

// gated makes Connect's gate of ours.
func (e *edge) gated(gate Gate) connect.RequestGateFunc {
	return func(ctx context.Context, spec connect.Spec, peer connect.Peer, header http.Header) (out context.Context, err error) {
		isStream := spec.StreamType != connect.StreamTypeUnary
		inLoop := e.holdBack && isStream && conns.EntryOf(ctx).Wait(ctx)
		bounded, cancel := context.WithTimeout(ctx, e.timeout)
		defer cancel()
		defer func() {
			if err = e.translate(bounded, spec.Procedure, err, recover()); err != nil {
				e.metrics.refused(spec.Procedure, err)
				if isStream {
					e.noteRefusal(ctx, err)
				}
			}
		}()
		call := Call{Procedure: spec.Procedure, Header: header, InLoop: inLoop}
		in := inflowOf(ctx)
		if in != nil {
			call.Client = in.client
		} else {
			call.Client = addressOf(peer.Addr)
		}
		admission, err := gate(bounded, call)
		if err != nil {
			if in != nil {
				in.caller = admission.Caller
			}
			return nil, err
		}
		if err := in.admitted(admission.Caller); err != nil {
			return nil, err
		}
		if admission.With != nil {
			ctx = admission.With(ctx)
		}
		return ctx, nil
	}
}

// decoding gives the charge of a stream's message back once it is decoded: the stream
// may last for hours.
type decoding struct {
	connect.StreamingHandlerConn
	in *inflow
}

func (d decoding) Receive(message any) error {
	defer d.in.release()
	return d.StreamingHandlerConn.Receive(message)
}

// addressOf reads host:port. It returns the zero Addr for what is no address of a network.
func addressOf(hostPort string) netip.Addr {
	at, err := netip.ParseAddrPort(hostPort)
	if err != nil {
		return netip.Addr{}
	}
	return at.Addr().Unmap().WithZone("")
}
