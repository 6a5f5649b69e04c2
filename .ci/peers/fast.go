package main

import (
	"net"

	"github.com/valyala/fasthttp"
)

func serveFast(at string, to *balancer) error {
	clients := map[string]*fasthttp.HostClient{}
	for _, address := range to.instances {
		clients[address] = &fasthttp.HostClient{
			Addr: address, MaxConns: connections, MaxIdleConnDuration: idle, StreamResponseBody: true,
			DisableHeaderNamesNormalizing: true, DisablePathNormalizing: true, NoDefaultUserAgentHeader: true,
		}
	}
	server := &fasthttp.Server{
		IdleTimeout: idle, DisableHeaderNamesNormalizing: false, NoDefaultServerHeader: true, NoDefaultContentType: true,
		Handler: func(ctx *fasthttp.RequestCtx) {
			for _, name := range hop {
				ctx.Request.Header.Del(name)
			}
			client, _, _ := net.SplitHostPort(ctx.RemoteAddr().String())
			ctx.Request.Header.Set("X-Forwarded-For", forwarded(ctx.Request.Header.Peek("X-Forwarded-For"), client))
			// A streaming response is the connection's until it is closed: fasthttp does that once it is written.
			if err := clients[to.next()].Do(&ctx.Request, &ctx.Response); err != nil {
				ctx.Error(err.Error(), failedStatus)
				return
			}
			for _, name := range hop {
				ctx.Response.Header.Del(name)
			}
		},
	}
	return server.ListenAndServe(at)
}
