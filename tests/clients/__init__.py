"""Clients that generators make of the OpenAPI document: each runs a program against a live server."""
