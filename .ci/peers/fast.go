package main

import (
	"net"

	"github.com/valyala/fasthttp"
)

func serveFasthttp(listen string, instances *balancer) error {
	clients := map[string]*fasthttp.HostClient{}
	for _, address := range instances.instances {
		clients[address] = &fasthttp.HostClient{
			Addr: address, MaxConns: maxConnections, MaxIdleConnDuration: idleTimeout, StreamResponseBody: true,
			DisableHeaderNamesNormalizing: true, DisablePathNormalizing: true, NoDefaultUserAgentHeader: true,
		}
	}
	server := &fasthttp.Server{
		IdleTimeout: idleTimeout, DisableHeaderNamesNormalizing: false, NoDefaultServerHeader: true, NoDefaultContentType: true,
		Handler: func(ctx *fasthttp.RequestCtx) {
			for _, name := range hopFields {
				ctx.Request.Header.Del(name)
			}
			client, _, _ := net.SplitHostPort(ctx.RemoteAddr().String())
			ctx.Request.Header.Set("X-Forwarded-For", appendClient(ctx.Request.Header.Peek("X-Forwarded-For"), client))
			// A streamed response keeps its connection until it is closed. fasthttp closes the response after writing it.
			if err := clients[instances.nextInstance()].Do(&ctx.Request, &ctx.Response); err != nil {
				ctx.Error(err.Error(), failedStatus)
				return
			}
			for _, name := range hopFields {
				ctx.Response.Header.Del(name)
			}
		},
	}
	return server.ListenAndServe(listen)
}
