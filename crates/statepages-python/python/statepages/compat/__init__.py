"""The interface of engines that have a block pool and page-unit checkpoints already.

Same names, signatures and behaviour; the pages and records are the core's. Swap the import:

    from statepages.compat.block_pool import BlockPool
    from statepages.compat.page_unit_checkpoint import PagedStateCheckpointCoordinator
"""
